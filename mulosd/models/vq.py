"""VQ tokenizer in LlamaGen's layout and under its state-dict names (tokenizer/tokenizer_image/vq_model.py).

images [B, 3, height, width] in about [-1, 1]  <->  codes [B, H, W] with H = height / stride.
`patch` > 1 (the tiny family) puts a space-to-depth stem in front of `conv_in` and its inverse after
`conv_out`; the released layout is patch = 1. Knows nothing of text, sampling or files.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class VQConfig:
    """Shape of a VQ tokenizer; the defaults are LlamaGen's VQ-16."""

    ch: int = 128
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_res_blocks: int = 2
    z_channels: int = 256
    codebook_size: int = 16384
    codebook_dim: int = 8
    patch: int = 1

    @property
    def stride(self) -> int:
        """Pixels per code along one axis."""
        return self.patch * int(2 ** (len(self.ch_mult) - 1))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResBlock(nn.Module):
    """GN, SiLU, conv3x3 twice, plus a shortcut (1x1 where the widths differ)."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.norm1 = _norm(c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2 = _norm(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        if c_in != c_out:
            self.nin_shortcut = nn.Conv2d(c_in, c_out, 1)
        self.has_shortcut = c_in != c_out

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        update: Tensor = self.conv2(F.silu(self.norm2(h)))
        return update + (self.nin_shortcut(x) if self.has_shortcut else x)


class AttnBlock(nn.Module):
    """Single-head attention over all positions, with a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, channels, height, width)
        update: Tensor = self.proj_out(out)
        return x + update


class _Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))  # type: ignore[no-any-return]


class _Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))  # type: ignore[no-any-return]


class _Level(nn.Module):
    """Residual blocks of one resolution, each followed by attention at the coarsest one."""

    def __init__(self, c_in: int, c_out: int, blocks: int, *, attention: bool, resample: str) -> None:
        super().__init__()
        self.res = nn.ModuleList([ResBlock(c_in if j == 0 else c_out, c_out) for j in range(blocks)])
        self.attn = nn.ModuleList([AttnBlock(c_out) for _ in range(blocks)] if attention else [])
        if resample == "down":
            self.downsample = _Downsample(c_out)
        if resample == "up":
            self.upsample = _Upsample(c_out)
        self.resample = resample

    def forward(self, x: Tensor) -> Tensor:
        for j, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[j](x)
        if self.resample == "down":
            x = self.downsample(x)
        if self.resample == "up":
            x = self.upsample(x)
        return x


def _mid(channels: int) -> nn.ModuleList:
    return nn.ModuleList([ResBlock(channels, channels), AttnBlock(channels), ResBlock(channels, channels)])


class Encoder(nn.Module):
    """[B, 3, height, width] -> [B, z_channels, H, W]."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.patch = config.patch
        widths = [config.ch * m for m in config.ch_mult]
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(3 * config.patch**2, config.ch, 3, padding=1)
        self.conv_blocks = nn.ModuleList(
            _Level(
                config.ch if i == 0 else widths[i - 1],
                width,
                config.num_res_blocks,
                attention=i == last,
                resample="" if i == last else "down",
            )
            for i, width in enumerate(widths)
        )
        self.mid = _mid(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], config.z_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_in(F.pixel_unshuffle(x, self.patch) if self.patch > 1 else x)
        for block in (*self.conv_blocks, *self.mid):
            h = block(h)
        return self.conv_out(F.silu(self.norm_out(h)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """[B, z_channels, H, W] -> [B, 3, height, width], unclamped."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.patch = config.patch
        widths = [config.ch * m for m in reversed(config.ch_mult)]
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(config.z_channels, widths[0], 3, padding=1)
        self.mid = _mid(widths[0])
        self.conv_blocks = nn.ModuleList(
            _Level(
                widths[max(i - 1, 0)],
                width,
                config.num_res_blocks + 1,
                attention=i == 0,
                resample="" if i == last else "up",
            )
            for i, width in enumerate(widths)
        )
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], 3 * config.patch**2, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.conv_in(z)
        for block in (*self.mid, *self.conv_blocks):
            h = block(h)
        h = self.conv_out(F.silu(self.norm_out(h)))
        return F.pixel_shuffle(h, self.patch) if self.patch > 1 else h


class Quantizer(nn.Module):
    """Nearest code by cosine: vectors and codebook are l2-normalised."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codebook_size, config.codebook_dim)

    def codebook(self) -> Tensor:
        """Normalised codes [V, D]."""
        return F.normalize(self.embedding.weight, dim=-1)

    def nearest(self, z: Tensor) -> Tensor:
        """[B, D, H, W] -> code ids [B, H, W]."""
        flat = F.normalize(z.movedim(1, -1), dim=-1)
        return (flat @ self.codebook().T).argmax(-1)

    def lookup(self, codes: Tensor) -> Tensor:
        """Code ids [B, H, W] -> normalised vectors [B, D, H, W]."""
        return F.embedding(codes, self.codebook()).movedim(-1, 1)


class VQModel(nn.Module):
    """Encoder, quantizer and decoder; any image whose sides are multiples of the stride."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantize = Quantizer(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.codebook_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.codebook_dim, config.z_channels, 1)

    def latent(self, image: Tensor) -> Tensor:
        """[B, 3, height, width] -> [B, D, H, W] before quantisation."""
        return self.quant_conv(self.encoder(image))  # type: ignore[no-any-return]

    def encode(self, image: Tensor) -> Tensor:
        """[B, 3, height, width] in [-1, 1] -> code ids [B, H, W]."""
        return self.quantize.nearest(self.latent(image))

    def decode_latent(self, z: Tensor) -> Tensor:
        """[B, D, H, W] normalised codes -> [B, 3, height, width], unclamped."""
        return self.decoder(self.post_quant_conv(z))  # type: ignore[no-any-return]

    def decode(self, codes: Tensor) -> Tensor:
        """Code ids [B, H, W] -> [B, 3, height, width], unclamped."""
        return self.decode_latent(self.quantize.lookup(codes))
