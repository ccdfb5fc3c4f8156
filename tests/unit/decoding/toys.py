"""A toy family of random models: a small VQ and two GPTs on grids of ratio 2. Float64 unless asked otherwise."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding import verify
from mulosd.decoding.job import Job, Result
from mulosd.decoding.registry import decode
from mulosd.methods import SamplerKnobs
from mulosd.models.condition import Condition
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, tiny_gpt
from mulosd.models.kv_cache import KVCache
from mulosd.models.vq import VQConfig, VQModel
from mulosd.sampling.filters import Sampler
from mulosd.scenes.words import encode_words
from mulosd.types import STATUS_ACCEPTED, Bools, Ints
from mulosd.upsample import build_upsampler
from mulosd.upsample.down import AreaDown

CODES = 32
CAPTIONS = ("a red circle", "two blue squares and a striped cross", "a green triangle above a circle")
SEEDS = (11, 12, 13)


@dataclass(frozen=True)
class Family:
    """Tokenizer, drafter and target of one dtype."""

    vq: VQModel
    drafter: ImageGPT
    target: ImageGPT


@cache
def family(draft_grid: int = 4, dtype: torch.dtype = torch.float64) -> Family:
    """Random weights, large enough for peaked and context-dependent distributions; target grid = 2 x draft grid."""
    torch.manual_seed(0)
    vq = VQModel(VQConfig(ch=32, ch_mult=(1,), num_res_blocks=1, z_channels=32, codebook_size=CODES, patch=4))
    parts = vq, random_gpt(draft_grid), random_gpt(2 * draft_grid)
    return Family(*(part.to(dtype).eval().requires_grad_(False) for part in parts))


def random_gpt(grid: int) -> ImageGPT:
    config = GPTConfig(
        dim=16,
        n_layers=2,
        n_heads=2,
        vocab_size=CODES,
        grid=grid,
        prefix_len=len(encode_words("")),
        ffn_dim=32,
        prefix_attention="identity",
        axial_positions=True,
    )
    model = tiny_gpt(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3 if weight.ndim > 1 else 1.0)
    return model


def condition(images: Sequence[int] = (0, 1, 2)) -> Condition:
    ids = torch.tensor([encode_words(CAPTIONS[i % 3]) for i in images])
    return Condition(ids, torch.ones_like(ids, dtype=torch.bool))


def make_job(
    images: Sequence[int] = (0, 1, 2),
    *,
    draft_grid: int = 4,
    dtype: torch.dtype = torch.float64,
    upsampler: str = "bicubic",
    wrap: Callable[[ImageGPT], Any] = lambda model: model,
    **changes: Any,
) -> Job:
    """A batch of the toy images `images`; `wrap` may dress the target model, `changes` are fields of the job."""
    toys = family(draft_grid, dtype)
    fields: dict[str, Any] = {
        "sampler": Sampler(guidance=3.0),
        "drafter": toys.drafter,
        "draft_sampler": Sampler(guidance=2.0),
        "upsampler": build_upsampler(upsampler, vq=toys.vq, draft_grid=draft_grid, ratio=2),
        "downsampler": AreaDown(toys.vq, 2 * draft_grid, 2),
        "neighbours": lambda pool_k: verify.nearest_codes(toys.vq.quantize.codebook(), pool_k),
    }
    seeds = torch.tensor([SEEDS[i % 3] + 100 * (i // 3) for i in images])
    return Job(wrap(toys.target), condition(images), seeds, **{**fields, **changes})


def run(method: SamplerKnobs, images: Sequence[int] = (0, 1, 2), **options: Any) -> Result:
    return decode(make_job(images, **options), method)


def counters(result: Result, image: int = 0) -> dict[str, float]:
    """The counters of one image: integers, without times and chosen taus, which rounding may touch."""
    return {k: v for k, v in vars(result.stats[image]).items() if not k.startswith("time_") and k != "chosen_taus"}


def resampled_map(result: Result, image: int) -> Bools:
    """R_X as the status map shows it."""
    return np.asarray(result.status[image] != STATUS_ACCEPTED)


def teacher_forced_cache(tokens: Ints, model: ImageGPT | None = None) -> Tensor:
    """K/V [layers, 2, 2B, heads, T + N + 1, head_dim] of a model (the target), fed images [B, H, W] in one pass."""
    model = model or family().target
    fed = torch.from_numpy(tokens.reshape(len(tokens), -1)).repeat(2, 1)
    prefix = model.prefix(condition(), with_null=True)
    fresh = model.new_cache(len(fed))
    where = torch.arange(fed.shape[1]).expand(len(fed), -1)
    causal = torch.ones(where.shape[1], where.shape[1], dtype=torch.bool).tril().expand(len(fed), -1, -1)
    with torch.inference_mode():
        model(fed, where, where, fresh, causal, prefix.rows)
    return fresh.kv


class Poisoned:
    """A model whose caches start full of a value in place of zeros."""

    def __init__(self, model: ImageGPT, value: float) -> None:
        self._model, self._value = model, value
        self.config, self.prefix = model.config, model.prefix
        self.caches: list[KVCache] = []

    def new_cache(self, rows: int, **room: Any) -> KVCache:
        kv = self._model.new_cache(rows, **room)
        kv.poison(self._value)
        self.caches.append(kv)
        return kv

    def __call__(self, *args: Any) -> Tensor:
        return self._model(*args)  # type: ignore[no-any-return]


@contextmanager
def patched(target: Any, name: str, value: Any) -> Iterator[None]:
    """A monkeypatch for one block (for use inside hypothesis)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        yield


def same_tokens(a: Result, b: Result) -> bool:
    return bool(np.array_equal(a.tokens, b.tokens))


def labels_of(rows: Sequence[str]) -> Ints:
    """A label map from drawn rows: '.' is not pending, a digit is its island."""
    return np.array([[0 if c == "." else int(c) for c in row] for row in rows], np.int64)
