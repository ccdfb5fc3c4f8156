"""The engine: any cut of a sequence into forwards gives the sequential logits; guidance; counting."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding.engine import Engine, Queries
from mulosd.methods import AR
from mulosd.models.image_gpt import ImageGPT
from mulosd.models.kv_cache import KVCache
from mulosd.sampling.filters import Sampler, guide
from tests.unit.decoding import toys

TOKENS = np.random.default_rng(0).integers(0, toys.CODES, (3, 64))


def engine(dtype: torch.dtype = torch.float64, guidance: float = 3.0) -> Engine:
    fresh = toys.make_job(dtype=dtype, sampler=Sampler(guidance=guidance)).target_engine()
    fresh.tokens[:] = TOKENS
    return fresh


def queries(positions: list[list[int]]) -> list[Queries]:
    """Queries of each image at the given positions, with its tokens."""
    return [Queries([int(TOKENS[b, p]) for p in own], own, own, [-1] * len(own)) for b, own in enumerate(positions)]


@torch.inference_mode()
def sequential(dtype: torch.dtype = torch.float64, guidance: float = 3.0) -> Tensor:
    """Logits [B, 1 + 40, V] of position -1 and of 40 tokens fed one by one through the lockstep path."""
    fresh = engine(dtype, guidance)
    steps = [fresh.start_logits("resample")]
    steps += [fresh.feed_lockstep(p, "resample") for p in range(40)]
    return torch.stack(steps, dim=1)


@torch.inference_mode()
def in_chunks(sizes: list[int], *, causal: bool, reverse: bool = False) -> Tensor:
    fresh, start, parts = engine(), 0, []
    for size in sizes:
        own = list(range(start, start + size))
        order = own[::-1] if reverse else own
        logits = fresh.feed(queries([order] * 3), "verify", causal=causal)
        parts.append(logits.flip(1) if reverse else logits)
        start += size
    return torch.cat([fresh.start_logits("verify")[:, None], *parts], dim=1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", [[40], [1] * 40, [7, 1, 20, 12], [16, 24]], ids=str)
def test_chunked_is_sequential(sizes: list[int], causal: bool) -> None:
    assert torch.allclose(in_chunks(sizes, causal=causal), sequential(), atol=1e-10)


def test_the_order_of_queries_in_a_call_does_not_matter() -> None:
    assert torch.allclose(in_chunks([9, 31], causal=True, reverse=True), sequential(), atol=1e-10)


@torch.inference_mode()
def test_ragged_calls_are_sequential() -> None:
    """Images advance on their own schedules; padding goes to the trash slot and is not counted."""
    fresh, expected, done = engine(), sequential(), [0, 0, 0]
    fresh.start_logits("verify")
    for sizes in ([5, 0, 1], [0, 12, 3], [8, 8, 8], [27, 20, 28]):
        spans = [list(range(begin, begin + size)) for begin, size in zip(done, sizes, strict=True)]
        logits = fresh.feed(queries(spans), "verify")
        for b, own in enumerate(spans):
            assert torch.allclose(logits[b, : len(own)], expected[b, 1 + done[b] : 1 + done[b] + len(own)], atol=1e-10)
            done[b] += len(own)
    assert [stats.forwards_verify for stats in fresh.stats] == [1 + 3, 1 + 3, 1 + 4]
    assert [stats.tokens_fed for stats in fresh.stats] == [40] * 3


@torch.inference_mode()
def test_scattered_rewrites_follow_the_new_context() -> None:
    """Feeding positions again rewrites their slots: later queries see the new tokens, as a fresh run does."""
    fresh = engine()
    fresh.tokens[:, 20:25] = 0
    wrong = [Queries([0] * 5, list(range(20, 25)), list(range(20, 25)), [-1] * 5)] * 3
    fresh.feed(queries([list(range(20))] * 3), "verify")
    fresh.feed(wrong, "verify")
    stale = fresh.feed(queries([[25]] * 3), "verify")
    rewritten = fresh.feed(queries([list(range(20, 40))] * 3), "verify", causal=True)
    expected = sequential()
    assert torch.allclose(rewritten, expected[:, 21:], atol=1e-10)
    assert not torch.allclose(stale[:, 0], expected[:, 26], atol=1e-3)


@torch.inference_mode()
def test_the_first_call_carries_the_prefix_and_counts_once() -> None:
    fresh = engine()
    fresh.feed(queries([list(range(4))] * 3), "verify")
    first = fresh.start_logits("resample")
    assert torch.allclose(first, sequential()[:, 0], atol=1e-10)
    assert [(s.forwards_verify, s.forwards_resample) for s in fresh.stats] == [(1, 0)] * 3


class Rows:
    """Counts the rows of each call."""

    def __init__(self, model: ImageGPT) -> None:
        self._model, self.rows = model, set[int]()
        self.config, self.prefix, self.new_cache = model.config, model.prefix, model.new_cache

    def __call__(self, tokens: Tensor, *rest: object) -> Tensor:
        self.rows.add(len(tokens))
        return self._model(tokens, *rest)  # type: ignore[no-any-return]


@torch.inference_mode()
def test_guidance_equals_two_separate_forwards() -> None:
    model, scale = toys.family().target, 3.0
    both = model.prefix(toys.condition(), with_null=True)
    halves = []
    for rows in (both.rows[:3], both.rows[3:]):
        cache: KVCache = model.new_cache(3)
        where = torch.arange(40).expand(3, -1)
        mask = torch.ones(40, 40, dtype=torch.bool).tril().expand(3, -1, -1)
        halves.append(model(torch.from_numpy(TOKENS[:, :40]), where, where, cache, mask, rows))
    cond, null = halves
    assert not torch.allclose(cond, null, atol=1e-2)
    assert torch.allclose(guide(cond, null, scale), sequential(guidance=scale), atol=1e-9)
    assert torch.allclose(cond, sequential(guidance=1.0), atol=1e-10)


@pytest.mark.parametrize(("guidance", "rows"), [(1.0, 3), (1.5, 6)])
def test_a_scale_of_one_runs_only_the_condition(guidance: float, rows: int) -> None:
    models: list[Rows] = []

    def wrap(model: ImageGPT) -> Rows:
        models.append(Rows(model))
        return models[0]

    result = toys.run(AR(), wrap=wrap, sampler=Sampler(guidance=guidance))
    assert models[0].rows == {rows}
    assert toys.same_tokens(result, toys.run(AR(), sampler=Sampler(guidance=1.0))) == (guidance <= 1)
    assert [stats.forwards for stats in result.stats] == [64] * 3  # one call with both halves is one forward


def test_chunking_in_float32_stays_close() -> None:
    assert torch.allclose(sequential(torch.float32).double(), sequential(), atol=1e-3)
