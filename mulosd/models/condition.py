"""What an image model is conditioned on, and the prefix rows that a model makes of it."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Condition:
    """Left-padded condition of B images: ids [B, T] or features [B, T, C], mask [B, T] (True = valid)."""

    values: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.values)


class Prefix(NamedTuple):
    """rows [R, T, d] and mask [R, T]; R = B, or 2B with the null rows after the conditional ones.

    A model that keeps the K/V of its null form (`mulosd.models.ar_dtok`) leaves the null ones out of `rows`.
    """

    rows: Tensor
    mask: Tensor
