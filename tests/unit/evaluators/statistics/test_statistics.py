"""Intervals against known answers and small coverage simulations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.statistics import intervals as stats
from mulosd.errors import DataError
from mulosd.types import Estimate, Interval


def per_sample(values: np.ndarray) -> dict[str, float]:
    """[prompts, images] -> sample_id -> value."""
    return {f"b/{p:04d}/{i}": float(v) for p, line in enumerate(values) for i, v in enumerate(line)}


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_values(successes: int, n: int, low: float, high: float) -> None:
    assert stats.wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 4)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="of n"):
        stats.wilson_interval(successes, n)


def test_bootstrap_of_a_mean_matches_the_normal_limits() -> None:
    values = np.random.default_rng(1).normal(5, 2, (400, 1))
    estimate = stats.bootstrap_mean(per_sample(values))
    half = 1.96 * values.std(ddof=1) / math.sqrt(400)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert (estimate.n, estimate.n_clusters) == (400, 400)


def test_images_of_a_prompt_are_resampled_together() -> None:
    values = np.repeat(np.random.default_rng(2).normal(0, 1, (50, 1)), 4, axis=1)
    repeated = stats.bootstrap_mean(per_sample(values))
    single = stats.bootstrap_mean(per_sample(values[:, :1]))
    assert repeated.interval == pytest.approx(single.interval)
    assert (repeated.n, repeated.n_clusters) == (200, 50)


def test_limits_do_not_depend_on_the_order_of_the_samples() -> None:
    values = per_sample(np.random.default_rng(3).normal(0, 1, (30, 2)))
    backwards = dict(reversed(values.items()))
    assert stats.bootstrap_mean(values) == stats.bootstrap_mean(backwards)
    assert stats.bootstrap_mean(values) != stats.bootstrap_mean(values, seed=1)


def test_limits_do_not_depend_on_the_blocks_they_are_drawn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    values = per_sample(np.random.default_rng(7).gamma(2, 1, (30, 2)))
    ones = dict.fromkeys(values, 1.0)
    whole = stats.bootstrap_mean(values, resamples=500), stats.median_of_ratios(values, ones, resamples=500)
    monkeypatch.setattr(stats, "_BLOCK", 7 * 30 + 5)
    assert (stats.bootstrap_mean(values, resamples=500), stats.median_of_ratios(values, ones, resamples=500)) == whole


def test_memory_stays_bounded_with_many_prompts() -> None:
    """A resample of more prompts than a block holds is drawn alone."""
    shapes = [pick.shape for pick in stats._picks(stats._BLOCK + 1, 3, np.random.default_rng(0))]
    assert shapes == [(1, stats._BLOCK + 1)] * 3
    assert max(len(pick) * 1000 for pick in stats._picks(1000, 300, np.random.default_rng(0))) <= stats._BLOCK


def test_strata_weigh_the_same_unless_pooled() -> None:
    values = per_sample(np.array([[1.0]] * 30 + [[0.0]] * 10))
    strata = {key: "a" if value else "b" for key, value in values.items()}
    assert stats.bootstrap_mean(values, strata=strata).value == 0.5
    assert stats.bootstrap_mean(values, strata=strata, pooled=True).value == 0.75
    # Nothing varies inside a stratum, so resampling inside strata has no width, and without strata it has.
    assert stats.bootstrap_mean(values, strata=strata).interval == (0.5, 0.5)
    low, high = stats.bootstrap_mean(values).interval
    assert low < 0.7 < 0.8 < high


def test_a_single_prompt_gives_no_interval() -> None:
    estimate = stats.bootstrap_mean({"b/p/0": 1.0, "b/p/1": 0.0})
    assert (estimate.value, estimate.interval) == (0.5, None)
    assert "two prompts" in estimate.reason
    strata = {"b/p/0": "alone", "b/q/0": "pair", "b/r/0": "pair"}
    lonely = stats.bootstrap_mean(dict.fromkeys(strata, 1.0), strata=strata)
    assert lonely.interval is None
    assert "alone" in lonely.reason


def test_nothing_to_average_and_broken_values_are_refused() -> None:
    with pytest.raises(DataError, match="no value"):
        stats.bootstrap_mean({})
    with pytest.raises(DataError, match="b/x/0"):
        stats.bootstrap_mean({"b/x/0": math.nan, "b/y/0": 1.0})
    with pytest.raises(DataError, match="no value"):
        stats.paired_difference({"b/x/0": 1.0}, {"b/y/0": 1.0})
    with pytest.raises(DataError, match="no value"):
        stats.median_of_ratios({"b/x/0": 1.0}, {"b/y/0": 1.0})


def test_proportion_keeps_a_width_at_the_ends() -> None:
    all_right = stats.bootstrap_proportion(per_sample(np.ones((12, 4))))
    assert all_right.interval == stats.wilson_interval(12, 12)
    mixed = per_sample(np.array([[1.0], [0.0], [1.0]]))
    assert stats.bootstrap_proportion(mixed) == stats.bootstrap_mean(mixed)


def test_pairing_removes_what_the_prompts_share() -> None:
    rng = np.random.default_rng(4)
    base = rng.normal(0, 5, (100, 1))
    a, b = per_sample(base + 0.5 + rng.normal(0, 0.5, (100, 1))), per_sample(base)
    estimate = stats.paired_difference(a, b)
    assert estimate.interval.low > 0.35
    assert estimate.interval.high < 0.70
    swapped = stats.paired_difference(b, a)
    assert swapped.value == pytest.approx(-estimate.value)


def test_unpaired_samples_are_left_out_and_counted() -> None:
    a = {"b/1/0": 1.0, "b/2/0": 0.0, "b/3/0": 1.0}
    b = {"b/1/0": 0.0, "b/2/0": 0.0, "b/4/0": 9.0}
    estimate = stats.paired_difference(a, b)
    assert (estimate.value, estimate.n, estimate.n_unpaired) == (0.5, 2, 2)


def test_contrast_asks_for_half_of_an_advantage() -> None:
    keys = [f"b/{i}/0" for i in range(50)]
    ar, control = dict.fromkeys(keys, 0.8), dict.fromkeys(keys, 0.4)
    for kept, sign in ((0.7, 1), (0.5, -1)):
        estimate = stats.paired_contrast([dict.fromkeys(keys, kept), ar, control], [1, -0.5, -0.5])
        assert math.copysign(1, estimate.value) == sign


def test_ratio_of_totals_is_not_the_mean_of_ratios() -> None:
    top, bottom = {"b/1/0": 10.0, "b/2/0": 90.0}, {"b/1/0": 1.0, "b/2/0": 30.0}
    assert stats.ratio_of_totals(top, bottom).value == pytest.approx(100 / 31)
    assert stats.median_of_ratios(top, bottom).value == pytest.approx((10 + 3) / 2)
    same = stats.ratio_of_totals({k: 3 * v for k, v in bottom.items()}, bottom)
    assert same.interval == pytest.approx((3.0, 3.0))
    with pytest.raises(DataError, match="b/2/0"):
        stats.ratio_of_totals(top, {**bottom, "b/2/0": 0.0})


@pytest.mark.parametrize(
    ("limits", "direction", "verdict", "limit"),
    [
        ((-0.04, 0.02), "higher", "non-inferior", -0.04),
        ((-0.06, 0.02), "higher", "not shown", -0.06),
        ((-0.20, -0.06), "higher", "inferior", -0.20),
        ((-0.02, 0.04), "lower", "non-inferior", 0.04),
        ((0.06, 0.20), "lower", "inferior", 0.20),
        (None, "higher", "not shown", None),
    ],
)
def test_non_inferiority(limits: tuple | None, direction: str, verdict: str, limit: float | None) -> None:
    interval = Interval(*limits) if limits else None
    estimate = Estimate(0.0, interval, 100, 100)
    decided = stats.non_inferiority(estimate, margin=0.05, direction=direction)
    assert (decided.verdict, decided.limit) == (verdict, limit)


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_a_margin_is_positive_and_finite(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        stats.non_inferiority(Estimate(0, None, 1, 1), margin=margin)


def test_coverage_of_clustered_proportions() -> None:
    """Prompts differ in difficulty; limits that ignored the clusters would cover about 0.75 of the time here."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        difficulty = rng.beta(0.5, 0.5, (60, 1))
        right = rng.random((60, 4)) < difficulty
        low, high = stats.bootstrap_mean(per_sample(right), resamples=400).interval
        covered += low <= 0.5 <= high
    assert 0.90 <= covered / 300 <= 0.98


def test_coverage_of_the_ratio_of_totals() -> None:
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        bottom = rng.gamma(4, 1, (50, 1))
        top = 2 * bottom * rng.lognormal(-0.02, 0.2, (50, 1))  # mean of the factor is 1
        low, high = stats.ratio_of_totals(per_sample(top), per_sample(bottom), resamples=400).interval
        covered += low <= 2.0 <= high
    assert 0.89 <= covered / 300 <= 0.98


@settings(max_examples=30)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_limits_stay_inside_the_data(values: list[float]) -> None:
    estimate = stats.bootstrap_mean(per_sample(np.array(values)[:, None]), resamples=200)
    assert min(values) - 1e-9 <= estimate.interval.low <= estimate.interval.high <= max(values) + 1e-9


def test_prompt_of() -> None:
    assert stats.prompt_of("dpg/a-b/3") == "dpg/a-b"
    assert stats.prompt_of("plain") == "plain"


def test_standard_error_of_single_and_repeated_prompts() -> None:
    values = np.random.default_rng(5).normal(0, 1, (60, 1))
    expected = float(values.std(ddof=1)) / math.sqrt(60)
    assert stats.standard_error(per_sample(values)) == pytest.approx(expected)
    # Copies of an image are no new evidence.
    assert stats.standard_error(per_sample(np.repeat(values, 5, axis=1))) == pytest.approx(expected)


def test_standard_error_needs_two_prompts() -> None:
    assert stats.standard_error({}) is None
    assert stats.standard_error({"b/1/0": 1.0, "b/1/1": 0.0}) is None


def test_standard_error_agrees_with_the_bootstrap_on_uneven_prompts() -> None:
    rng = np.random.default_rng(6)
    values = {f"b/{p}/{i}": float(rng.normal(p % 3, 1)) for p in range(80) for i in range(1 + p % 4)}
    interval = stats.bootstrap_mean(values).interval
    assert interval is not None
    error = stats.standard_error(values)
    assert error == pytest.approx((interval.high - interval.low) / (2 * 1.96), rel=0.05)


def test_a_share_of_totals_keeps_a_width_where_all_agree() -> None:
    whole = {f"b/{i}/0": 64.0 for i in range(6)}
    none = stats.share_of_totals(dict.fromkeys(whole, 0.0), whole)
    assert none.interval == stats.wilson_interval(0, 6)
    assert stats.share_of_totals(whole, whole).interval == stats.wilson_interval(6, 6)
    some = {key: float(8 * i) for i, key in enumerate(whole)}
    assert stats.share_of_totals(some, whole) == stats.ratio_of_totals(some, whole)
