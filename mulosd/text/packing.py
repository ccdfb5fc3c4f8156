"""A `Condition` <-> rows of plain values, one per image, as the stage keeps them. Padding is left out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mulosd.models.condition import Condition


def pack(condition: Condition) -> list[dict[str, Any]]:
    """Rows with dtype, length T, and shape and bytes of the valid values; what the mask hides must be zero."""
    rows = []
    for values, mask in zip(condition.values.cpu(), condition.mask.cpu(), strict=True):
        valid = values[mask].contiguous()
        data = valid.reshape(-1).view(torch.uint8)
        rows.append(
            {
                "dtype": str(values.dtype).removeprefix("torch."),
                "length": len(mask),
                "shape": list(valid.shape),
                "values": data.numpy().tobytes(),
            }
        )
    return rows


def broken_rows(condition: Condition) -> list[int]:
    """The images (0 to B - 1) whose features are not finite; ids always are."""
    values = condition.values
    broken: list[int] = (~values.isfinite().flatten(1).all(1)).nonzero()[:, 0].tolist()
    return broken


def unpack(rows: Sequence[Mapping[str, Any]], *, device: str | torch.device = "cpu") -> Condition:
    """The condition of B rows of one length."""
    lengths = {row["length"] for row in rows}
    if len(lengths) != 1:
        raise ValueError(f"conditions of lengths {sorted(lengths)} cannot form a batch")
    (length,) = lengths
    values, masks = [], []
    for row in rows:
        flat = torch.frombuffer(bytearray(row["values"]), dtype=getattr(torch, row["dtype"]))
        valid = flat.reshape(row["shape"])
        values.append(torch.cat([valid.new_zeros(length - len(valid), *valid.shape[1:]), valid]))
        masks.append(torch.arange(length) >= length - len(valid))
    return Condition(torch.stack(values).to(device), torch.stack(masks).to(device))
