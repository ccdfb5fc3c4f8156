"""Tar's autoregressive de-tokenizer, "llama-abs-LP" (models.md 4.3): TA-Tok features -> VQ codes.

LlamaGen's blocks without rotation: learned positions are added to the inputs, and the prefix is attended to like
any other token. Knows nothing of TA-Tok: its condition is features [B, T, C], T at most the length that it was
trained with.
"""

import torch
from torch import Tensor, nn

from mulosd.models.conditioning import Condition, Prefix
from mulosd.models.transformer import GPTConfig, Transformer


class ARDTok(Transformer):
    """Trunk, projection of the features and one table of positions: prefix row j has index j, image cell p T + p."""

    def __init__(self, config: GPTConfig, cond_dim: int) -> None:
        if config.positions != "learned" or config.axial_positions:
            raise ValueError("AR-DTok has learned positions alone: positions='learned', axial_positions=False")
        super().__init__(config)
        self.clip_proj = nn.Linear(cond_dim, config.dim)
        # the last cell is never fed, so that the table ends one before it
        self.abs_pe = nn.Parameter(torch.zeros(1, config.prefix_len + config.num_tokens - 1, config.dim))

    def prefix(self, condition: Condition, *, with_null: bool) -> Prefix:
        """Prefix rows of features [B, T, C]; the null form is all-zero features, so the bias of the projection."""
        features, mask = condition.values.type_as(self.abs_pe), condition.mask
        if with_null:
            features, mask = torch.cat([features, torch.zeros_like(features)]), torch.cat([mask, mask])
        return Prefix(self.clip_proj(features) + self.abs_pe[:, : features.shape[1]], mask)

    def embed(self, tokens: Tensor, positions: Tensor, prefix_len: int) -> Tensor:
        """Embeddings [R, Q, d] of codes at raster positions behind a prefix of `prefix_len` rows."""
        return self.tok_embeddings(tokens) + self.abs_pe[0, prefix_len + positions]  # type: ignore[no-any-return]

    def position_table(self, prefix_len: int) -> Tensor:
        """What is added to the embeddings of positions 0, 1, … behind a prefix of `prefix_len` rows."""
        return self.abs_pe[0, prefix_len:]
