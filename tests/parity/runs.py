"""Feeding a model as the reference's loop does: the prefix, then tokens at positions, in both halves of a batch."""

import torch
from torch import Tensor

from mulosd.models.ar_dtok import ARDTok
from mulosd.models.condition import Condition
from mulosd.models.image_gpt import ImageGPT
from mulosd.models.kv_cache import KVCache

Model = ImageGPT | ARDTok


def start(model: Model, condition: Condition, *, with_null: bool = True) -> tuple[KVCache, Tensor]:
    """A cache with its mask set, and the prefix rows."""
    prefix = model.prefix(condition, with_null=with_null)
    cache = model.new_cache(len(prefix.mask))
    cache.prefix_mask = prefix.mask
    return cache, prefix.rows


def prefill(model: Model, condition: Condition, *, with_null: bool = True) -> tuple[KVCache, Tensor]:
    """The prefix alone; logits [R, T, V] of every prefix row."""
    cache, rows = start(model, condition, with_null=with_null)
    none = torch.zeros(len(cache.prefix_mask), 0, dtype=torch.int64)
    hidden = model.features(none, none, none, cache, 0, rows)
    return cache, model.output(model.norm(hidden))


def feed(model: Model, cache: KVCache, tokens: Tensor, positions: list[int]) -> Tensor:
    """Logits [R, Q, V] of tokens [B, Q] at positions; every slot up to a query's position is visible."""
    rows = len(cache.prefix_mask)
    fed = tokens.long().repeat(rows // len(tokens), 1)
    where = torch.tensor(positions).expand(rows, -1)
    mask = torch.arange(max(positions) + 1) <= where[..., None]
    logits: Tensor = model(fed, where, where, cache, mask)
    return logits


def run(model: Model, condition: Condition, tokens: Tensor, steps: int, *, with_null: bool = True) -> Tensor:
    """Logits [steps, R, V] of position -1 and of the first tokens [B, N], fed one by one."""
    cache, first = prefill(model, condition, with_null=with_null)
    fed = [feed(model, cache, tokens[:, j : j + 1], [j])[:, 0] for j in range(steps - 1)]
    return torch.stack([first[:, -1].to(fed[0].dtype), *fed])
