"""Token-space up-sampling: each draft code is copied to a ratio x ratio block (a lower bound, no decoder)."""

from torch import Tensor


class Repeat:
    """Copies codes; row-causal by construction."""

    def __init__(self, ratio: int) -> None:
        self.ratio = ratio

    def __call__(self, low: Tensor, start: int) -> Tensor:
        """[B, b, w], start -> [B, (b - start) * ratio, w * ratio]."""
        rows = low[:, start:]
        return rows.repeat_interleave(self.ratio, dim=1).repeat_interleave(self.ratio, dim=2)
