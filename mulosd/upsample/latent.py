"""Up-sampling in latent space by one small network (docs/upsamplers.md "Learned up-samplers"): no decoder or encoder.

Unit code vectors -> 1x1 conv -> row-causal residual convs on the draft grid -> pixel shuffle -> row-causal residual
convs on the target grid, added to the repeated input -> unit vectors -> nearest code. A network belongs to the
tokenizer that it was trained with; `mulosd.families.latent_card` knows its files. No norm over the map and no look
below a row, so rows are row-causal by construction.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from mulosd.errors import DataError
from mulosd.families.latent_card import LatentCard
from mulosd.models.vq import VQModel
from mulosd.sampling.finite import where_finite


@dataclass(frozen=True)
class LatentConfig:
    """`blocks` of `width` channels on the draft grid, `fine_blocks` of `fine_width` on the target grid."""

    ratio: int
    codebook_dim: int = 8
    width: int = 64
    blocks: int = 6
    fine_width: int = 32
    fine_blocks: int = 2


class RowCausalConv(nn.Conv2d):
    """[B, C, H, W] -> [B, C', H, W]: a 3x3 convolution without the kernel row below the centre.

    Left out rather than zeroed: the fast algorithms for 3x3 mix neighbouring rows before zeros cancel them.
    """

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__(c_in, c_out, (2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 0)))


class _Block(nn.Module):
    """SiLU, conv twice, plus the input; starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = RowCausalConv(channels, channels)
        self.conv2 = RowCausalConv(channels, channels)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.conv2(F.silu(self.conv1(F.silu(x))))
        return x + update


class LatentNet(nn.Module):
    """Unit code vectors [B, D, h, w] -> unit vectors [B, D, h * ratio, w * ratio]."""

    def __init__(self, config: LatentConfig) -> None:
        super().__init__()
        self.config = config
        self.conv_in = nn.Conv2d(config.codebook_dim, config.width, 1)
        self.coarse = nn.Sequential(*(_Block(config.width) for _ in range(config.blocks)))
        self.expand = RowCausalConv(config.width, config.fine_width * config.ratio**2)
        self.fine = nn.Sequential(*(_Block(config.fine_width) for _ in range(config.fine_blocks)))
        self.conv_out = RowCausalConv(config.fine_width, config.codebook_dim)
        nn.init.zeros_(self.conv_out.weight)
        nn.init.zeros_(self.conv_out.bias)  # type: ignore[arg-type]

    def forward(self, vectors: Tensor) -> Tensor:
        ratio = self.config.ratio
        h = self.coarse(self.conv_in(vectors))
        h = self.fine(F.pixel_shuffle(self.expand(F.silu(h)), ratio))
        repeated = vectors.repeat_interleave(ratio, 2).repeat_interleave(ratio, 3)
        return F.normalize(repeated + self.conv_out(F.silu(h)), dim=1)


class Latent:
    """The network between a tokenizer's codes. `vq` and `net` share device and dtype.

    Rows are always computed on the full draft canvas: a kernel may round differently for another height.
    """

    def __init__(self, net: LatentNet, vq: VQModel, draft_grid: int) -> None:
        self.net, self.vq, self.draft_grid = net, vq, draft_grid

    @torch.inference_mode()
    def __call__(self, low: Tensor, start: int) -> Tensor:
        """[B, b, w], start -> [B, (b - start) * ratio, w * ratio]."""
        known, ratio = low.shape[1], self.net.config.ratio
        canvas = F.pad(low, (0, 0, 0, self.draft_grid - known))
        vectors = self.net(self.vq.quantize.lookup(canvas))
        codes = where_finite(self.vq.quantize.nearest(vectors), vectors)
        return codes[:, start * ratio : known * ratio]


def load_latent(card: LatentCard, vq: VQModel, draft_grid: int) -> Latent:
    """The published network on the device and in the dtype of `vq`. DataError where its file does not fit its card."""
    state = {key: value.float() for key, value in load(card.read_weights()).items()}
    net = LatentNet(LatentConfig(**card.config))
    expected = {key: value.shape for key, value in net.state_dict().items()}
    if {key: value.shape for key, value in state.items()} != expected:
        raise DataError(f"{card.weights}: its tensors are not those of {card.path.name}; restore both files.")
    net.load_state_dict(state)
    weight = vq.quantize.embedding.weight
    return Latent(net.to(weight.device, weight.dtype).eval().requires_grad_(False), vq, draft_grid)
