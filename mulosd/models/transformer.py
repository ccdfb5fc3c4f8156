"""The decoder-only trunk of every image model here, and its position-addressed forward.

LlamaGen's layout and state-dict names (autoregressive/models/gpt.py): pre-norm blocks, fused wqkv, SwiGLU, 2-D rotary
positions with interleaved pairs, a caption prefix. AR-DTok has the same blocks with `positions` = "learned". The
two fields that the released models leave at their defaults are `rope_scale` (multiplies the raster coordinates) and
`axial_positions` (learned row and column vectors added to the token embeddings). Knows nothing of sampling,
guidance or schedules.

Axes: R rows (batch, twice with guidance), Q fed positions, T prefix rows, S slots, V codes, d width.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mulosd.models.gpt_config import GPTConfig
from mulosd.models.kv_cache import VIRTUAL_KEYS, KVCache


def rope_table(config: GPTConfig) -> Tensor:
    """(cos, sin) of every sequence index, float32 [T + N, head_dim / 2, 2].

    Row half first, column half second. The T prefix rows are zeros (LlamaGen: they erase q and k) or
    the identity, by `prefix_attention`.
    """
    quarter = config.head_dim // 4
    omega = config.rope_base ** (-2.0 * torch.arange(quarter).float() / (config.head_dim // 2))
    coordinate = torch.arange(config.grid).float() * config.rope_scale
    angle = torch.outer(coordinate, omega)
    rows = angle[:, None, :].expand(-1, config.grid, -1)
    cols = angle[None, :, :].expand(config.grid, -1, -1)
    angles = torch.cat([rows, cols], dim=-1).reshape(config.num_tokens, -1)
    image = torch.stack([angles.cos(), angles.sin()], dim=-1)
    prefix = torch.zeros(config.prefix_len, image.shape[1], 2)
    if config.prefix_attention == "identity":
        prefix[..., 0] = 1.0
    return torch.cat([prefix, image])


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotate interleaved pairs: x [R, heads, Q, head_dim], table [R or 1, Q, head_dim / 2, 2], in float32."""
    wide = x if x.dtype == torch.float64 else x.float()
    pairs = wide.reshape(*x.shape[:-1], -1, 2)
    cos, sin = table[:, None, :, :, 0].type_as(wide), table[:, None, :, :, 1].type_as(wide)
    even, odd = pairs[..., 0], pairs[..., 1]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2).type_as(x)


class RMSNorm(nn.Module):
    """RMS norm in float32, cast back before the weight is applied."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, wide.shape[-1:], eps=self.eps).type_as(x) * self.weight


def running_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the visible rows up to each row: values [R, heads, T, head_dim], mask [R, T]; in float32 or wider."""
    seen = mask[:, None, :, None]
    wide = values if values.dtype == torch.float64 else values.float()
    return (wide.masked_fill(~seen, 0).cumsum(2) / seen.cumsum(2).clamp(min=1)).type_as(values)


class Attention(nn.Module):
    """Fused q, k, v; rotary; softmax attention over a cache or over the fed sequence itself."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.wqkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def qkv(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """[R, Q, d] -> rotated q, k and v, each [R, heads, Q, head_dim]."""
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.wqkv(x).chunk(3, dim=-1))
        if rope is not None:
            q, k = apply_rope(q, rope), apply_rope(k, rope)
        return q, k, v

    def out(self, heads: Tensor) -> Tensor:
        """[R, heads, Q, head_dim] -> [R, Q, d]."""
        return self.wo(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU without bias."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config.dim, config.hidden)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, rope: Tensor | None, *, causal: bool, mask: Tensor | None = None) -> Tensor:
        """Whole-sequence pass (training, text encoder): x [R, L, d]."""
        q, k, v = self.attention.qkv(self.attention_norm(x), rope)
        x = x + self.attention.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal))
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]

    def step(
        self,
        x: Tensor,
        rope: Tensor | None,
        store: Tensor,
        kv: Tensor,
        span: int,
        mask: Tensor | None,
        lead: Tensor | None = None,
    ) -> Tensor:
        """Cached pass: writes K/V at cache indices `store` [R, L], attends to the first `span` of them.

        lead: mask [R, T] of a collapsed prefix, whose T rows come first in x and are not among `store` and `mask`.
        """
        q, k, v = self.attention.qkv(self.attention_norm(x), rope)
        if lead is not None:
            prefix, v = v[:, :, : lead.shape[1]], v[:, :, lead.shape[1] :]
            q, k = q[:, :, lead.shape[1] :], k[:, :, lead.shape[1] :]
            means = running_mean(prefix, lead)
            kv[0, :, :, :VIRTUAL_KEYS] = 0
            kv[1, :, :, :VIRTUAL_KEYS] = means[:, :, -1:]
        index = store[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        kv[0].scatter_(2, index, k)
        kv[1].scatter_(2, index, v)
        heads = F.scaled_dot_product_attention(q, kv[0, :, :, :span], kv[1, :, :, :span], attn_mask=mask)
        if lead is not None:  # a padded row sees only itself
            heads = torch.cat([torch.where(lead[:, None, :, None], means, prefix), heads], dim=2)
        x = x + self.attention.out(heads)
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Token embeddings, blocks and head; prefix rows come from the model's condition embedder.

    collapses_prefix: LlamaGen's prefix, whose q and k are zero, becomes one virtual key in new caches (the same
    logits, fewer keys). False keeps all its rows.
    """

    rope: Tensor | None

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = tuple(Block(config) for _ in range(config.n_layers))
        self.layers = nn.ModuleList(self.blocks)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.axial_positions:
            self.row_positions, self.col_positions = (
                nn.Parameter(torch.zeros(config.axes[1], config.dim)) for _ in range(2)
            )
        is_rotary = config.positions == "rotary"
        self.register_buffer("rope", rope_table(config) if is_rotary else None, persistent=False)
        self.collapses_prefix = is_rotary and config.prefix_attention == "zero"

    def new_cache(self, rows: int, *, scratch: int = 0, prefix_len: int | None = None) -> KVCache:
        """An empty cache for `rows` sequences after prefixes of up to `prefix_len` rows (None: of any length)."""
        weight, collapses = self.output.weight, self.collapses_prefix
        return KVCache(self.config, rows, scratch=scratch, prefix_len=prefix_len, like=weight, is_collapsed=collapses)

    def embed(self, tokens: Tensor, positions: Tensor, prefix_len: int) -> Tensor:
        """Embeddings [R, Q, d] of codes at raster positions after a prefix of `prefix_len` rows."""
        x = self.tok_embeddings(tokens)
        if self.config.axial_positions:
            grid, (first, _) = self.config.grid, self.config.axes
            x = x + self.row_positions[first + positions // grid] + self.col_positions[first + positions % grid]
        return x  # type: ignore[no-any-return]

    def forward_train(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Teacher-forced logits [R, N, V] of all tokens [R, N]; every prefix row [R, T, d] is visible."""
        fed = self.tok_embeddings(tokens[:, :-1])
        table = self.position_table(prefix.shape[1])
        if table is not None:
            fed = fed + table[: fed.shape[1]]
        x = torch.cat([prefix, fed], dim=1)
        rope = None if self.rope is None else self.rope[None, : x.shape[1]]
        for layer in self.blocks:
            x = layer(x, rope, causal=True)
        return self.output(self.norm(x[:, prefix.shape[1] - 1 :]))  # type: ignore[no-any-return]

    def position_table(self, prefix_len: int) -> Tensor | None:
        """What is added to the embeddings of positions 0, 1, … after a prefix of `prefix_len` rows: [>= N - 1, d]."""
        if not self.config.axial_positions:
            return None
        own = slice(self.config.axes[0], self.config.axes[0] + self.config.grid)
        return (self.row_positions[own, None] + self.col_positions[None, own]).flatten(0, 1)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        mask: Tensor | int,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """One position-addressed forward.

        tokens, positions, slots: [R, Q]; mask: bool [R, Q, S'] over the first S' slots, or a number S': every query
        sees the first S' slots; prefix: [R, T, d] rows of a first call, fed in the same pass. Returns logits [R, Q, V]
        of `config.logits_dtype`; with a prefix [R, 1 + Q, V], the first being position -1 (the last prefix row).
        """
        x = self.features(tokens, positions, slots, cache, mask, prefix)
        x = x[:, prefix.shape[1] - 1 :] if prefix is not None else x
        logits: Tensor = self.output(self.norm(x))
        is_wide = logits.dtype == torch.float64 or self.config.logits_dtype == "model"
        return logits if is_wide else logits.float()

    def features(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        mask: Tensor | int,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """What `forward` computes before the final norm: [R, Q, d], with a prefix [R, T + Q, d]."""
        T, keys = cache.prefix_mask.shape[1], cache.prefix_keys
        span = keys + (mask if isinstance(mask, int) else mask.shape[-1])
        x, store, where = self.embed(tokens, positions, T), slots + keys, positions + self.config.prefix_len
        if prefix is not None:
            first = torch.arange(T, device=slots.device).expand(len(prefix), T)
            x, where = torch.cat([prefix, x], 1), torch.cat([first, where], 1)
            store = store if cache.is_collapsed else torch.cat([first, store], 1)
        lead = cache.prefix_mask if prefix is not None and cache.is_collapsed else None
        attend = self._visible(cache, mask, prefix is not None, tokens.shape[1], span)
        rope = None if self.rope is None else self.rope[where]
        for layer, kv in zip(self.blocks, cache.kv, strict=True):
            x = layer.step(x, rope, store, kv, span, attend, lead)
        return x

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Conversions of the module leave the rotary table at float32 or wider."""
        table = self.rope
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if table is not None and self.rope is not None and self.rope.itemsize < table.itemsize:
            self.rope = table.to(self.rope.device)
        return self

    def _visible(self, cache: KVCache, mask: Tensor | int, first: bool, queries: int, span: int) -> Tensor | None:
        """The mask [R, 1, L, span] over prefix and slots, or None when all is visible.

        Boolean; additive for the queries of a collapsed prefix, whose own rows need none.
        """
        if cache.is_collapsed:
            scores = cache.scores[..., :span]
            if isinstance(mask, int):
                return scores
            return scores.masked_fill(~F.pad(mask, (VIRTUAL_KEYS, 0), value=True)[:, None], -torch.inf)
        if isinstance(mask, int) and not first and cache.is_prefix_open:
            return None
        rows, T = cache.prefix_mask.shape
        device = cache.prefix_mask.device
        body = torch.ones(rows, queries, span - T, dtype=torch.bool, device=device) if isinstance(mask, int) else mask
        image = torch.cat([cache.prefix_mask[:, None, :].expand(-1, queries, -1), body], dim=-1)
        if first:
            causal = torch.ones(T, T, dtype=torch.bool, device=device).tril() & cache.prefix_mask[:, None, :]
            causal = causal | torch.eye(T, dtype=torch.bool, device=device)
            blind = torch.zeros(rows, T, span - T, dtype=torch.bool, device=device)
            image = torch.cat([torch.cat([causal, blind], dim=-1), image], dim=1)
        return image[:, None]
