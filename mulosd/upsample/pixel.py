"""Pixel-space up-sampling: decode the draft, resize, encode at the target resolution (decoding.md 1.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.models.vq import VQModel


class Bicubic:
    """VQ decode -> bicubic resize -> VQ encode.

    The tokenizer's group norms and attention look at the whole map, so rows are always decoded on the
    full draft canvas: known rows above, the last known row repeated below.
    """

    def __init__(self, vq: VQModel, draft_grid: int, ratio: int) -> None:
        self.vq, self.draft_grid, self.ratio = vq, draft_grid, ratio

    @torch.inference_mode()
    def __call__(self, low: Tensor, start: int) -> Tensor:
        """[B, b, w], start -> [B, (b - start) * ratio, w * ratio]."""
        known = low.shape[1]
        filler = low[:, -1:].expand(-1, self.draft_grid - known, -1)
        pixels = self.vq.decode(torch.cat([low, filler], dim=1)).clamp(-1, 1)
        large = F.interpolate(pixels, scale_factor=float(self.ratio), mode="bicubic", align_corners=False)
        codes = self.vq.encode(large.clamp(-1, 1))
        return codes[:, start * self.ratio : known * self.ratio]
