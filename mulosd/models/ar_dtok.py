"""Tar's autoregressive de-tokenizer, "llama-abs-LP" (csuhan/Tar 47da8e1): TA-Tok features -> VQ codes.

LlamaGen's blocks without rotation: learned positions are added to the inputs, and the prefix is attended to like
any other token. Knows nothing of TA-Tok: its condition is features [B, T, C], T at most the length that it was
trained with.

Its null prefix depends on no prompt, so its K/V are computed once and copied into every cache. That
pass is of no image and counts as no image's forward.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mulosd.models.condition import Condition, Prefix
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.kv_cache import KVCache
from mulosd.models.transformer import Transformer


class NullPrefix(NamedTuple):
    """What the null prefix leaves behind: kv [layers, 2, 1, heads, T, head_dim], features [1, T, d].

    source: T and, per weight, its memory and version; a change of any makes it out of date.
    """

    source: tuple[int, ...]
    kv: Tensor
    features: Tensor


class ARDTok(Transformer):
    """Trunk, projection of the features and one table of positions: prefix row j has index j, image cell p T + p.

    shares_null: null rows take the K/V of the null prefix that the model keeps. False feeds them like any others.
    """

    def __init__(self, config: GPTConfig, cond_dim: int) -> None:
        if config.positions != "learned" or config.axial_positions:
            raise ValueError("AR-DTok has learned positions only: positions='learned', axial_positions=False")
        super().__init__(config)
        self.clip_proj = nn.Linear(cond_dim, config.dim)
        # the last cell is never fed, so that the table ends one before it
        self.abs_pe = nn.Parameter(torch.zeros(1, config.prefix_len + config.num_tokens - 1, config.dim))
        self.shares_null = True
        self._null: NullPrefix | None = None

    def prefix(self, condition: Condition, *, with_null: bool) -> Prefix:
        """Prefix rows of features [B, T, C]; the null form is all-zero features, so the bias of the projection."""
        features, mask = condition.values.type_as(self.abs_pe), condition.mask
        if with_null:
            if not (self.shares_null and mask.all()):  # the kept K/V are those of rows that are all visible
                features = torch.cat([features, torch.zeros_like(features)])
            mask = torch.cat([mask, mask])
        return Prefix(self._prefix_rows(features), mask)

    def features(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        mask: Tensor | int,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """As the trunk's; the rows after those of `prefix` start from the null prefix that the model keeps."""
        if prefix is None or len(prefix) == len(tokens):
            return super().features(tokens, positions, slots, cache, mask, prefix)
        num, length = prefix.shape[:2]
        kept = self._null_prefix(length)
        cache.kv[:, :, num:, :, :length] = kept.kv

        def own(rows: slice, prefix: Tensor | None) -> Tensor:
            seen = mask if isinstance(mask, int) else mask[rows]
            fed = tokens[rows], positions[rows], slots[rows]
            return super(ARDTok, self).features(*fed, cache.of_rows(rows), seen, prefix)

        conditional, null = own(slice(num), prefix), kept.features.expand(len(tokens) - num, -1, -1)
        if tokens.shape[1]:
            null = torch.cat([null, own(slice(num, None), None)], dim=1)
        return torch.cat([conditional, null])

    def embed(self, tokens: Tensor, positions: Tensor, prefix_len: int) -> Tensor:
        """Embeddings [R, Q, d] of codes at raster positions after a prefix of `prefix_len` rows."""
        return self.tok_embeddings(tokens) + self.abs_pe[0, prefix_len + positions]  # type: ignore[no-any-return]

    def position_table(self, prefix_len: int) -> Tensor:
        """What is added to the embeddings of positions 0, 1, … after a prefix of `prefix_len` rows."""
        return self.abs_pe[0, prefix_len:]

    def _prefix_rows(self, features: Tensor) -> Tensor:
        rows: Tensor = self.clip_proj(features) + self.abs_pe[:, : features.shape[1]]
        return rows

    @torch.no_grad()
    def _null_prefix(self, length: int) -> NullPrefix:
        """That of `length` rows, from a pass of its own when there is none of these weights yet."""
        weights = (number for weight in self.parameters() for number in (weight.data_ptr(), weight._version))
        source = (length, *weights)
        if self._null is None or self._null.source != source:
            config, like = replace(self.config, grid=0), self.output.weight
            cache = KVCache(config, 1, prefix_len=length, like=like)
            none = torch.zeros(1, 0, dtype=torch.int64, device=like.device)
            rows = self._prefix_rows(like.new_zeros(1, length, self.clip_proj.in_features))
            features = super().features(none, none, none, cache, 0, rows)
            self._null = NullPrefix(source, cache.kv[..., :length, :].contiguous(), features)
        return self._null
