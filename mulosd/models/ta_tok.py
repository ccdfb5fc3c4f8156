"""TA-Tok, Tar's text-aligned tokenizer (Tar's tok/ta_tok.py): ids [B, T] -> features [B, T, width], images -> ids.

T = p * p ids of a p x p grid: 729, 169 or 81 at the scales 1, 2, 3. `TATokDecoder` is the half that text-to-image
needs: a deterministic function of the ids, whose output is the condition of AR-DTok. `TATok` adds the image half.
State-dict names are the reference's; what its pooling heads and constant buffers hold has no use here (`UNUSED`).
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

# Names in the released file that no output depends on; keys with these beginnings may be dropped.
UNUSED = ("encoder.head.", "decoder.vision_model.head.", "scale_layer.")
LAYER_NORM_EPS = 1e-6


@dataclass(frozen=True)
class TATokConfig:
    """Shape of a TA-Tok; the defaults are the released one.

    decoder_side: side of the decoder's position table, resized to the p x p grid in use. l2_normalized: codes and
    vectors have length 1 where they are compared.
    """

    width: int = 1152
    bottleneck_dim: int = 1536
    codebook_size: int = 65536
    l2_normalized: bool = True
    decoder_layers: int = 3
    decoder_heads: int = 12
    decoder_mlp: int = 3072
    decoder_side: int = 16
    encoder_layers: int = 27
    encoder_heads: int = 16
    encoder_mlp: int = 4304
    patch: int = 14
    image_px: int = 384


class SimVQ(nn.Module):
    """A codebook that is a learned projection of another table."""

    def __init__(self, config: TATokConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codebook_size, config.bottleneck_dim)
        self.embedding_proj = nn.Linear(config.bottleneck_dim, config.bottleneck_dim)
        self.l2_normalized = config.l2_normalized

    def lookup(self, ids: Tensor) -> Tensor:
        """Codes [..., bottleneck_dim] of ids [...]; only these rows are projected."""
        return self._project(self.embedding(ids))

    def codebook(self) -> Tensor:
        """All codes [V, bottleneck_dim]."""
        return self._project(self.embedding.weight)

    def nearest(self, z: Tensor) -> Tensor:
        """Ids [...] of the codes nearest to vectors [..., bottleneck_dim], without the reference's random choice."""
        codes = self.codebook()
        z = F.normalize(z, dim=-1) if self.l2_normalized else z
        return (z @ codes.T - codes.square().sum(-1) / 2).argmax(-1)

    def _project(self, rows: Tensor) -> Tensor:
        codes: Tensor = self.embedding_proj(rows)
        return F.normalize(codes, dim=-1) if self.l2_normalized else codes


class Bottleneck(nn.Module):
    """The quantiser between the two halves; `in_linear` belongs to the image half."""

    def __init__(self, config: TATokConfig, *, has_encoder: bool) -> None:
        super().__init__()
        self.regularizer = SimVQ(config)
        self.out_linear = nn.Linear(config.bottleneck_dim, config.bottleneck_dim)
        if has_encoder:
            self.in_linear = nn.Linear(config.width, config.bottleneck_dim)

    def encode(self, features: Tensor) -> Tensor:
        """[B, T, width] -> ids [B, T]."""
        return self.regularizer.nearest(self.in_linear(features))

    def decode(self, ids: Tensor) -> Tensor:
        """Ids [B, T] -> [B, T, bottleneck_dim]."""
        return self.out_linear(self.regularizer.lookup(ids))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Multi-head attention over all tokens, biases everywhere."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class VisionLayer(nn.Module):
    """SigLIP's pre-norm layer: attention, then an MLP with tanh-GELU."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.layer_norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.self_attn = SelfAttention(width, heads)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        hidden = F.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh")
        return x + self.mlp["fc2"](hidden)  # type: ignore[no-any-return]


class VisionTower(nn.Module):
    """Patch embedding with learned positions, layers and a final norm."""

    def __init__(self, patches: nn.Module, places: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({"patch_embedding": patches, "position_embedding": nn.Embedding(places, width)})
        self.blocks = tuple(VisionLayer(width, heads, hidden) for _ in range(layers))
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(self.blocks)})
        self.post_layernorm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    @property
    def places(self) -> Tensor:
        """The position table."""
        return self.embeddings["position_embedding"].weight  # type: ignore[return-value]


class TATokDecoder(nn.Module):
    """Ids -> the features that condition AR-DTok."""

    def __init__(self, config: TATokConfig, *, has_encoder: bool = False) -> None:
        super().__init__()
        self.config = config
        width, c = config.width, config
        tower = VisionTower(
            nn.Linear(c.bottleneck_dim, width),
            c.decoder_side**2,
            width,
            c.decoder_layers,
            c.decoder_heads,
            c.decoder_mlp,
        )
        self.bottleneck = Bottleneck(config, has_encoder=has_encoder)
        self.decoder = nn.ModuleDict({"vision_model": tower})
        self.decode_task_layer = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def decode(self, ids: Tensor) -> Tensor:
        """Ids [B, T], T a square number -> features [B, T, width]."""
        side = round(ids.shape[1] ** 0.5)
        if side * side != ids.shape[1]:
            raise ValueError(f"{ids.shape[1]} ids do not form a square grid")
        tower = self.decoder["vision_model"]
        assert isinstance(tower, VisionTower)
        x = tower.embeddings["patch_embedding"](self.bottleneck.decode(ids))
        x = x + _resized(tower.places, side).type_as(x)
        for layer in tower.blocks:
            x = layer(x)
        return self.decode_task_layer(tower.post_layernorm(x))  # type: ignore[no-any-return]


class TATok(TATokDecoder):
    """Both halves; `encode` turns images into ids (text-to-image never does)."""

    def __init__(self, config: TATokConfig) -> None:
        super().__init__(config, has_encoder=True)
        c, side = config, config.image_px // config.patch
        patches = nn.Conv2d(3, c.width, c.patch, stride=c.patch)
        self.encoder = VisionTower(patches, side**2, c.width, c.encoder_layers, c.encoder_heads, c.encoder_mlp)
        self.encode_task_layer = nn.Sequential(nn.Linear(c.width, c.width), nn.Tanh())

    def image_features(self, images: Tensor) -> Tensor:
        """Images [B, 3, image_px, image_px] in [0, 1] -> [B, width, p, p], the last layer but one (not normed)."""
        x: Tensor = self.encoder.embeddings["patch_embedding"](images * 2 - 1)
        side = x.shape[-1]
        x = x.flatten(2).transpose(1, 2) + self.encoder.places
        for layer in self.encoder.blocks[:-1]:
            x = layer(x)
        return x.transpose(1, 2).reshape(len(x), -1, side, side)

    def task_features(self, images: Tensor, scale: int = 1) -> Tensor:
        """The tower's output pooled by `scale` -> [B, T, width]; pooling drops what does not fill a window."""
        pooled = F.avg_pool2d(self.image_features(images), scale)
        return self.encode_task_layer(pooled.flatten(2).transpose(1, 2))  # type: ignore[no-any-return]

    def encode(self, images: Tensor, scale: int = 1) -> Tensor:
        """Images [B, 3, image_px, image_px] in [0, 1] -> ids [B, T]."""
        return self.bottleneck.encode(self.task_features(images, scale))


def _resized(places: Tensor, side: int) -> Tensor:
    """A square position table [P, d] at another side: float32 [side * side, d], bilinear with antialias."""
    old = round(len(places) ** 0.5)
    grid = places.float().T.reshape(1, -1, old, old)
    resized = F.interpolate(grid, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    return resized[0].flatten(1).T
