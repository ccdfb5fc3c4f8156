"""Feedback to the drafter (D_r): codes of the target grid -> codes of the draft grid."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.models.vq import VQModel
from mulosd.sampling.finite import where_finite


class AreaDown:
    """VQ decode -> mean over ratio x ratio pixels -> VQ encode. Called like an up-sampler.

    As there, rows are decoded on the full canvas: known rows above, the last known row repeated below.
    """

    def __init__(self, vq: VQModel, target_grid: int, ratio: int) -> None:
        self.vq, self.target_grid, self.ratio = vq, target_grid, ratio

    @torch.inference_mode()
    def __call__(self, high: Tensor, start: int) -> Tensor:
        """[B, b * ratio, W], start -> [B, b - start, W / ratio]."""
        known = high.shape[1]
        filler = high[:, -1:].expand(-1, self.target_grid - known, -1)
        pixels = self.vq.decode(torch.cat([high, filler], dim=1))
        latent = self.vq.latent(F.avg_pool2d(pixels.clamp(-1, 1), self.ratio))
        codes = where_finite(self.vq.quantize.nearest(latent), pixels, latent)
        return codes[:, start : known // self.ratio]
