"""Noise is a pure function of identity with the right law; draws follow the filtered softmax."""

import itertools

import pytest
import torch
from scipy import stats
from torch import Tensor

from mulosd.sampling import filters as sampling
from mulosd.sampling import noise
from mulosd.sampling.filters import Sampler

SEEDS = torch.tensor([0, 1, -1, 2**62, -(2**63)])
POSITIONS = torch.arange(6).expand(5, -1)
IDENTITY = {"stream": "target", "grid": 8, "iteration": 0}


def uniform(seeds: Tensor = SEEDS, positions: Tensor = POSITIONS, size: int = 16, **identity: object) -> Tensor:
    return noise.uniform(seeds, positions, size, **{**IDENTITY, **identity})  # type: ignore[arg-type]


def p_value(values: Tensor, bins: int = 64) -> float:
    counts = torch.histc(values.float(), bins, 0.0, 1.0)
    return float(stats.chisquare(counts.numpy()).pvalue)


def test_noise_depends_on_identity_alone() -> None:
    together = uniform()
    for b in range(len(SEEDS)):
        assert torch.equal(uniform(SEEDS[b : b + 1], POSITIONS[b : b + 1])[0], together[b])
    order = torch.tensor([3, 0, 5])
    assert torch.equal(uniform(positions=POSITIONS[:, order]), together[:, order])
    assert torch.equal(uniform(size=8), together[..., :8])  # a code's noise does not depend on the vocabulary
    torch.manual_seed(1)
    assert torch.equal(uniform(), together)


@pytest.mark.parametrize(
    "change", [{"stream": "draft"}, {"stream": "accept"}, {"grid": 16}, {"iteration": 1}, {"seeds": SEEDS + 1}]
)
def test_every_part_of_the_identity_counts(change: dict[str, object]) -> None:
    a, b = uniform(size=2000), uniform(size=2000, **change)  # type: ignore[arg-type]
    assert (a != b).all()
    assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.02


def test_noise_is_uniform_along_every_axis() -> None:
    seeds, positions = torch.arange(40_000), torch.arange(40_000)
    along_seeds = uniform(seeds, torch.zeros(40_000, 1, dtype=torch.int64), 1)
    along_positions = uniform(torch.tensor([7]), positions[None], 1)
    along_codes = uniform(torch.tensor([7]), torch.zeros(1, 1, dtype=torch.int64), 40_000)
    for values in (along_seeds, along_positions, along_codes):
        flat = values.flatten()
        assert ((flat > 0) & (flat < 1)).all()
        assert p_value(flat) > 1e-3
        pairs = torch.stack([flat[:-1], flat[1:]])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.02
        assert len(flat.unique()) == len(flat)
    assert p_value(along_seeds.flatten() ** 1.05) < 1e-6  # the test tells a slightly bent law


def test_streams_have_distinct_numbers() -> None:
    assert len(set(noise.STREAMS.values())) == len(noise.STREAMS)
    with pytest.raises(KeyError):
        uniform(stream="other")


def test_extreme_noise_is_finite() -> None:
    ends = torch.tensor([0.5 / 2**52, 1 - 0.5 / 2**52], dtype=torch.float64)
    assert (ends > 0).all()
    assert (ends < 1).all()
    assert torch.isfinite(-torch.log(-torch.log(ends))).all()


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.2, 0.0, -0.5, -1.0, -3.0], dtype=torch.float64)


def draws(sampler: Sampler, count: int = 20_000) -> Tensor:
    """One draw each for `count` seeds at position 5."""
    seeds = torch.arange(count)
    logits = LOGITS.expand(count, 1, -1)
    return sampling.draw(logits, sampler, seeds, torch.full((count, 1), 5), stream="target", grid=8)[:, 0]


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(),
        Sampler(temperature=0.6),
        Sampler(top_k=4),
        Sampler(top_p=0.8),
        Sampler(temperature=1.4, top_k=6, top_p=0.9),
    ],
    ids=repr,
)
def test_draws_follow_the_filtered_softmax(sampler: Sampler) -> None:
    counts = torch.bincount(draws(sampler), minlength=8)
    probs = sampling.probabilities(LOGITS, sampler)
    assert (counts[probs == 0] == 0).all()
    kept = probs > 0
    assert stats.chisquare(counts[kept].numpy(), (probs[kept] * counts.sum()).numpy()).pvalue > 1e-3
    hotter = sampling.probabilities(LOGITS, Sampler(temperature=1.2 * sampler.temperature, top_k=sampler.top_k))[kept]
    expected = (hotter / hotter.sum() * counts.sum()).numpy()
    assert stats.chisquare(counts[kept].numpy(), expected).pvalue < 1e-6  # negative control


def test_draws_at_two_positions_are_independent() -> None:
    seeds = torch.arange(20_000)
    logits = LOGITS[:4].expand(20_000, 2, -1)
    both = sampling.draw(logits, Sampler(), seeds, torch.tensor([[3, 4]]).expand(20_000, -1), stream="target", grid=8)
    table = torch.bincount(both[:, 0] * 4 + both[:, 1], minlength=16).view(4, 4)
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3


def test_a_draw_does_not_depend_on_its_batch() -> None:
    seeds, positions = torch.arange(50), torch.arange(4).expand(50, -1)
    logits = torch.randn(50, 4, 32, generator=torch.Generator().manual_seed(0))
    whole = sampling.draw(logits, Sampler(top_k=9), seeds, positions, stream="draft", grid=4)
    for b, q in itertools.product((0, 17, 49), range(4)):
        own = logits[b : b + 1, q : q + 1], Sampler(top_k=9), seeds[b : b + 1], positions[b : b + 1, q : q + 1]
        assert sampling.draw(*own, stream="draft", grid=4).item() == whole[b, q]


def test_cold_sampling_and_top_1_are_greedy() -> None:
    for sampler in (Sampler(temperature=0.0), Sampler(top_k=1), Sampler(top_p=1e-9)):
        assert (draws(sampler, 200) == 0).all()


def test_filters_keep_ties_and_the_first_code() -> None:
    tied = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert torch.isfinite(sampling.filter_logits(tied, Sampler(top_k=2))).tolist() == [True, True, True, False]
    assert torch.isfinite(sampling.filter_logits(tied, Sampler(top_p=0.01))).sum() == 1
    assert torch.equal(sampling.filter_logits(tied, Sampler(top_k=99, top_p=1.0)), tied)


GREEDY = [Sampler(temperature=0.0), Sampler(top_k=1), Sampler(temperature=0.0, top_k=5, top_p=0.5)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampler", GREEDY, ids=repr)
def test_greedy_takes_the_lowest_of_the_maxima_whatever_the_seed(
    sampler: Sampler, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "gumbel", lambda *_, **__: pytest.fail("a greedy draw takes no noise"))
    tied = torch.tensor([0.5, 2.0, 2.0, 1.0, 2.0], dtype=dtype)
    seeds = torch.arange(64)
    drawn = sampling.draw(tied.expand(64, 1, -1), sampler, seeds, seeds[:, None], stream="target", grid=8)
    assert (drawn == 1).all()
    assert sampling.probabilities(tied, sampler).tolist() == [0, 1, 0, 0, 0]


def test_greedy_finds_a_maximum_that_noise_would_miss() -> None:
    close = torch.tensor([1.0, 1.0 + 1e-6, 0.0]).expand(64, 1, -1)
    for sampler in GREEDY:
        drawn = sampling.draw(close, sampler, torch.arange(64), torch.zeros(64, 1).long(), stream="target", grid=8)
        assert (drawn == 1).all()
    assert not Sampler(temperature=0.1).is_greedy
    assert not Sampler(top_k=2).is_greedy
