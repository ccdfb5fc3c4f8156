"""Pixel-space up-sampling: decode the draft, enlarge the image, encode at the target resolution.

An `Enlarge` maps pixels [B, 3, height, width] in [-1, 1] to `ratio` times as large ones of the same device and dtype;
it may overshoot the range.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.models.vq import VQModel
from mulosd.sampling.finite import where_finite

Enlarge = Callable[[Tensor], Tensor]


class PixelSpace:
    """VQ decode -> enlarge -> VQ encode.

    The tokenizer's group norms and attention look at the whole map, so rows are always decoded on the
    full draft canvas: known rows above, the last known row repeated below.
    """

    def __init__(self, vq: VQModel, draft_grid: int, ratio: int, enlarge: Enlarge) -> None:
        self.vq, self.draft_grid, self.ratio, self.enlarge = vq, draft_grid, ratio, enlarge

    @torch.inference_mode()
    def __call__(self, low: Tensor, start: int) -> Tensor:
        """[B, b, w], start -> [B, (b - start) * ratio, w * ratio]."""
        known = low.shape[1]
        filler = low[:, -1:].expand(-1, self.draft_grid - known, -1)
        pixels = self.vq.decode(torch.cat([low, filler], dim=1))
        large = self.enlarge(pixels.clamp(-1, 1))
        latent = self.vq.latent(large.clamp(-1, 1))
        codes = where_finite(self.vq.quantize.nearest(latent), pixels, large, latent)
        return codes[:, start * self.ratio : known * self.ratio]


def nearest(ratio: int) -> Enlarge:
    """Every pixel becomes a ratio x ratio block."""
    return lambda pixels: F.interpolate(pixels, scale_factor=float(ratio), mode="nearest")


def bicubic(ratio: int) -> Enlarge:
    """torch's bicubic kernel (a = -0.75), edges repeated."""
    return lambda pixels: F.interpolate(pixels, scale_factor=float(ratio), mode="bicubic", align_corners=False)


def lanczos(ratio: int) -> Enlarge:
    """Pillow's Lanczos kernel of three lobes, as one matrix per axis: on any device and without rounding to bytes."""

    def enlarge(pixels: Tensor) -> Tensor:
        wide = pixels.to(torch.promote_types(pixels.dtype, torch.float32))
        rows, cols = (torch.from_numpy(_lanczos_matrix(size, ratio)).to(wide) for size in pixels.shape[-2:])
        return (rows @ wide @ cols.T).to(pixels.dtype)

    return enlarge


@cache
def _lanczos_matrix(size: int, ratio: int) -> np.ndarray:
    """[size * ratio, size]: Pillow's weights, read off by enlarging the unit vectors."""
    from PIL import Image

    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    return np.asarray(unit.resize((size, size * ratio), Image.Resampling.LANCZOS)).copy()
