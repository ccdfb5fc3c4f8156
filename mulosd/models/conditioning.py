"""Conditions and the embedders that turn them into prefix rows.

A `Condition` is the one type everything is decoded under: word ids of the tiny family, T5 features or a class of
LlamaGen, TA-Tok features of Tar. An embedder returns the conditional rows followed, when asked, by its own null form.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mulosd.models.condition import Condition, Prefix
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.transformer import Block
from mulosd.scenes import vocabulary as voc


class CaptionEmbedder(nn.Module):
    """LlamaGen's text condition: two-layer projection and a stored null caption."""

    uncond_embedding: Tensor

    def __init__(self, caption_dim: int, dim: int, prefix_len: int) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {"fc1": nn.Linear(caption_dim, dim, bias=False), "fc2": nn.Linear(dim, dim, bias=False)}
        )
        self.register_buffer("uncond_embedding", torch.zeros(prefix_len, caption_dim))

    def forward(self, condition: Condition, *, with_null: bool) -> Prefix:
        """The null rows share the caption's mask, as in the reference."""
        features, mask = condition.values.type_as(self.uncond_embedding), condition.mask
        if with_null:
            null = self.uncond_embedding.expand(len(features), -1, -1)
            features, mask = torch.cat([features, null]), torch.cat([mask, mask])
        rows = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return Prefix(rows, mask)


class ClassEmbedder(nn.Module):
    """LlamaGen's class condition: ids [B, 1], one prefix row each; the null class is the last row."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, dim)

    def forward(self, condition: Condition, *, with_null: bool) -> Prefix:
        ids, mask = condition.values, condition.mask
        if with_null:
            null = torch.full_like(ids, self.embedding_table.num_embeddings - 1)
            ids, mask = torch.cat([ids, null]), torch.cat([mask, mask])
        return Prefix(self.embedding_table(ids), mask)


class WordEncoder(nn.Module):
    """Words of the scenes world through two bidirectional layers; the null form is NULL_ID everywhere.

    Padding is a word like any other (visible), so every prefix row is valid and no mask is needed. A model of several
    grids gets one more word, its resolution token, which the null form keeps.
    """

    def __init__(self, config: GPTConfig, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(voc.NUM_WORD_IDS + len(config.grids), config.dim)
        self.resolution = voc.NUM_WORD_IDS + config.grids.index(config.grid) if config.grids else None
        self.places = nn.Parameter(torch.zeros(config.prefix_len, config.dim))
        self.layers = nn.ModuleList(Block(config) for _ in range(layers))

    def forward(self, condition: Condition, *, with_null: bool) -> Prefix:
        ids, mask = condition.values, condition.mask
        if with_null:
            ids, mask = torch.cat([ids, torch.full_like(ids, voc.NULL_ID)]), torch.cat([mask, mask])
        if self.resolution is not None:
            ids, mask = F.pad(ids, (0, 1), value=self.resolution), F.pad(mask, (0, 1), value=True)
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x, None, causal=False)
        return Prefix(x, mask)
