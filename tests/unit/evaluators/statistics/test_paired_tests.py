"""Paired tests against closed forms, brute force and their own null distribution."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluators.statistics import paired_tests as tests
from evaluators.statistics.intervals import describe_bootstrap, paired_difference, share_whole
from mulosd.errors import DataError


def per_sample(values: np.ndarray) -> dict[str, float]:
    """[prompts, images] -> sample_id -> value."""
    return {f"b/{p:04d}/{i}": float(v) for p, line in enumerate(values) for i, v in enumerate(line)}


def right_or_wrong(only_a: int, only_b: int, both: int = 3) -> tuple[dict[str, float], dict[str, float]]:
    a = [1] * only_a + [0] * only_b + [1] * both
    b = [0] * only_a + [1] * only_b + [1] * both
    return per_sample(np.array(a)[:, None]), per_sample(np.array(b)[:, None])


@pytest.mark.parametrize(
    ("only_a", "only_b", "p_value"),
    # By hand: 2 P(Bin(n, 1/2) <= min).
    [(5, 0, 2 / 32), (0, 5, 2 / 32), (8, 2, 2 * 56 / 1024), (3, 3, 1.0), (0, 0, 1.0), (1, 0, 1.0)],
)
def test_mcnemar_by_hand(only_a: int, only_b: int, p_value: float) -> None:
    found = tests.mcnemar_exact(*right_or_wrong(only_a, only_b))
    assert found.p_value == pytest.approx(p_value)
    assert f"first right on {only_a} prompts" in found.note


def test_mcnemar_with_many_disagreements_does_not_underflow() -> None:
    assert tests.mcnemar_exact(*right_or_wrong(700, 600)).p_value == pytest.approx(0.006, abs=0.001)


def test_mcnemar_needs_single_right_or_wrong_images() -> None:
    a, b = per_sample(np.ones((4, 2))), per_sample(np.zeros((4, 2)))
    with pytest.raises(DataError, match="one image per prompt"):
        tests.mcnemar_exact(a, b)
    assert not tests.has_one_image_per_prompt(a, b)
    with pytest.raises(DataError, match="neither right nor wrong"):
        tests.mcnemar_exact({"b/1/0": 0.5}, {"b/1/0": 1.0})
    with pytest.raises(DataError, match="no sample"):
        tests.mcnemar_exact({"b/1/0": 1.0}, {"b/2/0": 1.0})


def test_sign_flips_with_one_right_or_wrong_image_are_mcnemar() -> None:
    a, b = right_or_wrong(8, 2)
    assert tests.sign_flip_test(a, b).p_value == pytest.approx(tests.mcnemar_exact(a, b).p_value)


@settings(max_examples=30)
@example([(0, -1), (0, -2), (0, 3)])  # sums to zero, which a sixth of each term does not in floating point
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=7))
def test_sign_flips_against_every_pattern(gaps: list[tuple[int, int]]) -> None:
    a = per_sample(np.array(gaps, float))
    b = dict.fromkeys(a, 0.0)
    sums = [sum(pair) for pair in gaps]
    patterns = list(itertools.product((-1, 1), repeat=len(sums)))
    extreme = [abs(sum(s * g for s, g in zip(p, sums, strict=True))) >= abs(sum(sums)) for p in patterns]
    assert tests.sign_flip_test(a, b).p_value == pytest.approx(np.mean(extreme))


def test_images_of_a_prompt_are_swapped_together() -> None:
    """Four equal images of 5 prompts are five units, not twenty."""
    a, b = per_sample(np.ones((5, 4))), per_sample(np.zeros((5, 4)))
    assert tests.sign_flip_test(a, b).p_value == pytest.approx(2 / 32)


def test_random_swaps_agree_with_all_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    a = per_sample(np.random.default_rng(5).normal(0.5, 1, (13, 1)))
    b = dict.fromkeys(a, 0.0)
    exact = tests.sign_flip_test(a, b)
    monkeypatch.setattr(tests, "MAX_EXACT", 3)
    drawn = tests.sign_flip_test(a, b)
    assert "exact" in exact.name
    assert "exact" not in drawn.name
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.015)
    assert drawn == tests.sign_flip_test(dict(reversed(a.items())), b)


def test_strata_weigh_the_same() -> None:
    """The big stratum says nothing, the small one is all A's: pooled it drowns, stratified it counts."""
    rng = np.random.default_rng(6)
    noise = rng.permutation([1.0, -1.0] * 40)
    values = per_sample(np.concatenate([noise, np.ones(9)])[:, None])
    strata = {key: "big" if i < 80 else "small" for i, key in enumerate(values)}
    zero = dict.fromkeys(values, 0.0)
    assert tests.sign_flip_test(values, zero, strata=strata).p_value < 0.02
    assert tests.sign_flip_test(values, zero).p_value > 0.2


@pytest.mark.parametrize("images", [1, 3])
def test_a_true_null_is_rejected_as_often_as_stated(images: int) -> None:
    rng = np.random.default_rng(7)
    rejected = 0
    for _ in range(200):
        shared = rng.normal(0, 1, (12, 1))
        a, b = (per_sample(shared + rng.normal(0, 1, (12, images)) + rng.normal(0, 1, (12, 1))) for _ in range(2))
        rejected += tests.sign_flip_test(a, b).p_value <= 0.05
    assert rejected / 200 == pytest.approx(0.05, abs=0.04)


def test_no_difference_at_all() -> None:
    a = per_sample(np.ones((4, 2)))
    found = tests.sign_flip_test(a, a)
    assert (found.p_value, found.n) == (1.0, 4)


@pytest.mark.parametrize(("a", "b", "value"), [(1, 1, 0.0), (0, 0, 0.0), (1, 0, 1.0), (0, 1, -1.0)])
def test_equal_differences_keep_a_width(a: int, b: int, value: float) -> None:
    """No disagreement on 10 prompts leaves room for z^2 / (n + z^2) = 0.278 of them."""
    left, right = per_sample(np.full((10, 2), a)), per_sample(np.full((10, 2), b))
    plain = paired_difference(left, right)
    assert plain.interval == (value, value)
    low, high = tests.limits_where_all_agree(plain, left, right, whole=1.0).interval
    assert (low, high) == pytest.approx((max(-1, value - 0.2775), min(1, value + 0.2775)), abs=1e-3)


def test_limits_with_a_width_are_left_alone() -> None:
    a, b = right_or_wrong(8, 2)
    plain = paired_difference(a, b)
    assert tests.limits_where_all_agree(plain, a, b, whole=1.0) == plain
    single = paired_difference({"b/1/0": 1.0}, {"b/1/0": 1.0})
    assert tests.limits_where_all_agree(single, {"b/1/0": 1.0}, {"b/1/0": 1.0}, whole=1.0).interval is None


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 1), (1, 0), (256, 256), (40, 16)])
def test_counts_have_no_limits_of_a_share_whatever_they_are(a: int, b: int) -> None:
    left, right = per_sample(np.full((6, 1), a)), per_sample(np.full((6, 1), b))
    plain = paired_difference(left, right)
    assert tests.limits_where_all_agree(plain, left, right, whole=None) == plain
    assert plain.interval == (a - b, a - b)


def test_points_of_100_have_the_limits_of_a_share_in_points() -> None:
    left = per_sample(np.full((6, 1), 37.5))
    low, high = tests.limits_where_all_agree(paired_difference(left, left), left, left, whole=100.0).interval
    assert (low, high) == pytest.approx((-39.03, 39.03), abs=0.01)


def test_a_metric_declares_whether_it_is_a_share() -> None:
    share = {"unit": "share of images", "protocol": {"interval": describe_bootstrap(proportion=True)}}
    assert share_whole(share) == 1.0
    assert share_whole({**share, "unit": "points of 100"}) == 100.0
    for protocol in ({"interval": describe_bootstrap()}, {"interval": "jackknife over prompts"}, {}):
        assert share_whole({"unit": "share of target tokens", "protocol": protocol}) is None


def test_wins_are_counted_by_prompt() -> None:
    a = per_sample(np.array([[1, 1], [1, 0], [0, 0], [1, 0]]))
    b = per_sample(np.array([[0, 0], [0, 1], [1, 0], [0, 0]]))
    wins = tests.count_wins(a, b)
    assert (wins.better, wins.equal, wins.worse) == (2, 1, 1)
    assert wins.rate == pytest.approx(2.5 / 4)
    lower = tests.count_wins(a, b, direction="lower")
    assert (lower.better, lower.worse) == (1, 2)
    assert math.isclose(wins.rate + lower.rate, 1)
