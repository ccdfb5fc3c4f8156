"""Keys and values of a model's past: where each token's are, and what represents a collapsed prefix."""

from copy import copy
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from mulosd.models.gpt_config import GPTConfig

# A collapsed prefix is one key with score log n, held as two keys whose scores add up to it (`log_count`).
VIRTUAL_KEYS = 2


class KVCache:
    """Keys and values of every layer: prefix slots, then N grid slots, scratch slots and one trash slot.

    A token of raster position p lives in slot p; `trash` takes padded queries and is never visible. Slot 0 follows the
    prefix in use, so that after one shorter than `prefix_slots` the rest of `kv` stays unused. With `is_collapsed` the
    whole prefix is `VIRTUAL_KEYS` keys. prefix_len: rows to keep room for; None: of the longest prefix.
    """

    def __init__(
        self,
        config: "GPTConfig",
        rows: int,
        *,
        scratch: int = 0,
        prefix_len: int | None = None,
        like: Tensor,
        is_collapsed: bool = False,
    ) -> None:
        length = config.prefix_len if prefix_len is None else prefix_len
        if length > config.prefix_len:
            raise ValueError(f"a prefix of {length} rows, but the model was made for {config.prefix_len}")
        self.is_collapsed = is_collapsed
        self.prefix_slots = VIRTUAL_KEYS if is_collapsed else length
        self.slots = config.num_tokens + scratch + 1
        self.trash = self.slots - 1
        shape = (config.n_layers, 2, rows, config.n_heads, self.prefix_slots + self.slots, config.head_dim)
        self.kv = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.prefix_mask = torch.ones(rows, length, dtype=torch.bool, device=like.device)

    @property
    def prefix_mask(self) -> Tensor:
        """Visible prefix rows, bool [R, T]; set before the first forward, its width is the prefix length in use."""
        return self._prefix_mask

    @prefix_mask.setter
    def prefix_mask(self, mask: Tensor) -> None:
        self._prefix_mask = mask
        self.prefix_keys = VIRTUAL_KEYS if self.is_collapsed else mask.shape[1]
        if self.prefix_keys > self.prefix_slots:
            raise ValueError(f"a prefix of {mask.shape[1]} rows, but the model has room for {self.prefix_slots}")
        if self.is_collapsed:
            scores = log_count(mask.sum(1), self.kv.dtype)
            self.scores = F.pad(scores, (0, self.slots))[:, None, None]  # of the virtual keys, then 0 for every slot
        else:
            self.is_prefix_open = bool(mask.all())  # once, here: `.all()` waits for the device

    def of_rows(self, rows: slice) -> "KVCache":
        """The cache of some of the rows, in the same memory."""
        view = copy(self)
        view.kv, view.prefix_mask = self.kv[:, :, rows], self.prefix_mask[rows]
        return view

    def poison(self, value: float) -> None:
        """Fill every slot with a value (tests: unused slots must not matter)."""
        self.kv.fill_(value)


def log_count(count: Tensor, dtype: torch.dtype) -> Tensor:
    """Scores [R, VIRTUAL_KEYS] of `dtype` whose exponentials add up to count [R].

    log n by itself, rounded to bfloat16, would weigh the prefix wrongly by up to 1.6 %. So the first score is rounded
    from slightly below log n, and the second one carries what is left, where rounding hardly counts.
    """
    exact = count.double()
    first = (exact.log() * (1 - 2**-8)).to(dtype)
    return torch.stack([first, (exact - first.double().exp()).clamp(min=0).log().to(dtype)], dim=1)
