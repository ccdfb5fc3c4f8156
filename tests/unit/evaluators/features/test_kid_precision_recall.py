"""KID against torchmetrics and brute force, precision and recall against brute force; what the sizes do."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.features.base import FeatureState, FixedReference
from evaluators.features.kid import KidEvaluator, distinct_rows, full_mmd, subset_mmd, unbiased_mmd
from evaluators.features.precision_recall import PrecisionRecallEvaluator, in_manifold, neighbour_distances
from evaluators.types import Metric
from tests.unit.evaluators.features.test_frechet import MeanColor
from tests.unit.evaluators.helpers import png_of, row

# torchmetrics warns that it keeps all features, which is what is wanted here.
keeps_features = pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save all:UserWarning")


def normal(n: int, d: int = 6, mean: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, (n, d)).astype(np.float32)


def names(n: int, side: str = "x") -> list[str]:
    return [f"{side}/{i}" for i in range(n)]


@keeps_features
def test_kid_is_torchmetrics_where_every_subset_is_the_whole_set() -> None:
    import torch
    from torchmetrics.image.kid import KernelInceptionDistance

    from evaluators.features.frechet_statistic import _FeaturesAsTheyAre

    x, y = normal(40, mean=0.3), normal(40, seed=1)
    theirs = KernelInceptionDistance(feature=_FeaturesAsTheyAre(6), subsets=3, subset_size=40)
    theirs.update(torch.from_numpy(y), real=True)
    theirs.update(torch.from_numpy(x), real=False)
    mean, sd = (float(v) for v in theirs.compute())
    ours = subset_mmd(x, y, subsets=3, subset_size=40, seed=0)
    assert ours.mean == pytest.approx(mean, rel=1e-4)
    assert ours.sd == pytest.approx(sd, abs=1e-5)
    assert full_mmd(x, names(40), y, names(40, "y")).value == pytest.approx(mean, rel=1e-4)


@keeps_features
def test_kid_subsets_agree_with_torchmetrics_on_average_and_scatter_by_their_size() -> None:
    import torch
    from torchmetrics.image.kid import KernelInceptionDistance

    from evaluators.features.frechet_statistic import _FeaturesAsTheyAre

    x, y = normal(120, mean=0.5), normal(150, seed=1)
    theirs = KernelInceptionDistance(feature=_FeaturesAsTheyAre(6), subsets=200, subset_size=30)
    theirs.update(torch.from_numpy(y), real=True)
    theirs.update(torch.from_numpy(x), real=False)
    torch.manual_seed(0)
    mean, sd = (float(v) for v in theirs.compute())
    small = subset_mmd(x, y, subsets=200, subset_size=30, seed=0)
    assert small.mean == pytest.approx(mean, abs=4 * sd / 200**0.5 * 2**0.5)
    assert small.sd == pytest.approx(sd, rel=0.3)
    large = subset_mmd(x, y, subsets=200, subset_size=100, seed=0)
    assert large.mean == pytest.approx(small.mean, abs=4 * small.sd / 200**0.5)
    assert large.sd < 0.6 * small.sd


def test_unbiased_mmd_by_hand_and_without_bias() -> None:
    x, y = np.array([[1.0], [2.0]], np.float32), np.array([[0.0], [3.0]], np.float32)
    cube = lambda a, b: (a * b + 1.0) ** 3  # noqa: E731
    expected = cube(1, 2) + cube(0, 3) - 2 * (cube(1, 0) + cube(1, 3) + cube(2, 0) + cube(2, 3)) / 4
    assert unbiased_mmd(x, y) == pytest.approx(expected)
    equal = [unbiased_mmd(normal(12, seed=2 * i), normal(12, seed=2 * i + 1)) for i in range(400)]
    assert abs(np.mean(equal)) < 3 * np.std(equal) / 400**0.5
    assert min(equal) < 0 < max(equal)


def brute_full(x: np.ndarray, x_names: Sequence[str], y: np.ndarray, y_names: Sequence[str]) -> float:
    def mean(a: np.ndarray, a_names: Sequence[str], b: np.ndarray, b_names: Sequence[str]) -> float:
        values = [
            (float(u.astype(float) @ v.astype(float)) / len(u) + 1) ** 3
            for u, i in zip(a, a_names, strict=True)
            for v, j in zip(b, b_names, strict=True)
            if i != j
        ]
        return float(np.mean(values))

    return mean(x, x_names, x, x_names) + mean(y, y_names, y, y_names) - 2 * mean(x, x_names, y, y_names)


def test_full_estimate_and_its_jackknife_against_brute_force() -> None:
    x, y = normal(7, mean=0.4), normal(9, seed=1)
    x_names, y_names = ["a", "a", "b", "c", "c", "c", "d"], ["a", "a", "b", "b", "c", "d", "d", "e", "f"]
    found = full_mmd(x, x_names, y, y_names)
    assert found.value == pytest.approx(brute_full(x, x_names, y, y_names))
    left_out = []
    for name in "abcd":
        keep_x, keep_y = (np.array([n != name for n in side]) for side in (x_names, y_names))
        kept = [[n for n in side if n != name] for side in (x_names, y_names)]
        left_out.append(brute_full(x[keep_x], kept[0], y[keep_y], kept[1]))
    assert found.standard_error == pytest.approx((3 / 4 * ((left_out - np.mean(left_out)) ** 2).sum()) ** 0.5)
    with pytest.raises(ValueError, match="one prompt"):
        full_mmd(x, ["a"] * 7, y, ["a"] * 9)


def test_full_estimate_is_unbiased_for_pairs_where_the_common_one_is_not() -> None:
    """Decoded images depend on their prompt: x = scene + noise, y = scene + noise of the same law."""
    full, common = [], []
    for seed in range(300):
        scene = normal(10, seed=3 * seed)
        x, y = (scene + 0.1 * normal(10, seed=3 * seed + k) for k in (1, 2))
        full.append(full_mmd(x, names(10), y, names(10)).value)
        common.append(unbiased_mmd(x, y))
    assert abs(np.mean(full)) < 3 * np.std(full) / 300**0.5
    assert np.mean(common) < -10 * np.std(common) / 300**0.5


def test_jackknife_limits_cover() -> None:
    """Of 200 draws about 95 % of the intervals hold the value that a large sample has."""
    truth = full_mmd(normal(3000, mean=0.5, seed=9), names(3000), normal(3000, seed=8), names(3000, "y")).value
    hits = 0
    for seed in range(200):
        found = full_mmd(normal(40, mean=0.5, seed=10 + 2 * seed), names(40), normal(40, seed=11 + 2 * seed), names(40))
        assert found.standard_error is not None
        hits += abs(found.value - truth) < 1.96 * found.standard_error
    assert 170 <= hits <= 199


def test_subsets_need_enough_rows_and_depend_on_the_seed_only() -> None:
    x, y = normal(20), normal(20, seed=1)
    with pytest.raises(ValueError, match="subsets of 21"):
        subset_mmd(x, y, subsets=1, subset_size=21, seed=0)
    one, same, other = (subset_mmd(x, y, subsets=5, subset_size=8, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


@settings(max_examples=60)
@given(
    st.integers(1, 12), st.integers(2, 12), st.integers(1, 4), st.integers(0, 1000), st.sampled_from(["closed", "open"])
)
def test_manifolds_against_brute_force(num: int, size: int, neighbours: int, seed: int, boundary: str) -> None:
    """Lattice points, so that equal points and points on a ball's surface are common."""
    rng = np.random.default_rng(seed)
    queries, points = (rng.integers(0, 3, (n, 2)).astype(np.float32) for n in (num, size))
    if size <= neighbours:
        with pytest.raises(ValueError, match="neighbours each"):
            neighbour_distances(points, neighbours)
        return
    expected = []
    for query in queries:
        hit = False
        for i, point in enumerate(points):
            others = sorted(float(np.linalg.norm(point - other)) for j, other in enumerate(points) if j != i)
            distance, radius = float(np.linalg.norm(query - point)), others[neighbours - 1]
            hit |= distance <= radius if boundary == "closed" else distance < radius
        expected.append(hit)
    found = in_manifold(queries, points, neighbours=neighbours, boundary=boundary)  # type: ignore[arg-type]
    assert found.tolist() == expected


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(50, mean=1.0), normal(40, seed=1)
    whole = in_manifold(x, y), full_mmd(x, names(50), y, names(40)).value
    monkeypatch.setattr("evaluators.features.precision_recall._BLOCK", 7)
    monkeypatch.setattr("evaluators.features.kid._BLOCK", 7)
    assert in_manifold(x, y).tolist() == whole[0].tolist()
    assert full_mmd(x, names(50), y, names(40)).value == pytest.approx(whole[1], rel=1e-12)
    assert 0 < whole[0].sum() < 50


def test_distinct_rows_keep_their_order() -> None:
    x = np.array([[2, 1], [1, 1], [2, 1], [0, 5]], np.float32)
    assert distinct_rows(x).tolist() == [[2, 1], [1, 1], [0, 5]]


# The evaluators


def images(num: int, seed: int, low: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(low, 256, (num, 4, 4, 3)).astype(np.uint8))


def renders(rows: Sequence[dict]) -> list[np.ndarray]:
    return [images(1, 100 + int(r["prompt_id"][1:]))[0] for r in rows]


IDENTITY = {"source": "renders"}
KID = KidEvaluator(MeanColor(), reference=renders, reference_identity=IDENTITY, subset_size=8)
PR = PrecisionRecallEvaluator(MeanColor(), reference=renders, reference_identity=IDENTITY)
ROWS = [row(f"p{i:02d}", None, image=png_of(image)) for i, image in enumerate(images(12, 0))]
FAILED = row("p90", None, error="out of memory")


def by_name(judge: KidEvaluator | PrecisionRecallEvaluator, rows: list[dict]) -> dict[str, Metric]:
    return {metric.name: metric for metric in judge.finalize(judge.score(rows))}


def test_metrics_are_named_for_the_network_and_state_their_size() -> None:
    found = {**by_name(KID, [*ROWS, FAILED]), **by_name(PR, [*ROWS, FAILED])}
    assert set(found) == {"kid_mean", "kid_mean_full", "precision_mean", "recall_mean"}
    assert [found[name].n for name in found] == [12, 12, 12, 13]
    assert {metric.n_missing for metric in found.values()} == {1}
    assert found["kid_mean"].protocol["subset_size"] == 8
    assert found["kid_mean"].interval is None
    assert found["kid_mean"].protocol["sd_over_subsets"] > 0
    full = found["kid_mean_full"]
    assert full.value is not None
    assert full.interval is not None
    assert full.interval[0] < full.value < full.interval[1]
    features = MeanColor().features(images(12, 0)).astype(np.float32)
    reference = MeanColor().features(renders([*ROWS, FAILED]))
    inside = in_manifold(features, reference)
    assert found["precision_mean"].value == pytest.approx(inside.mean())
    assert found["precision_mean"].per_sample == {r["sample_id"]: float(v) for r, v in zip(ROWS, inside, strict=True)}
    assert found["recall_mean"].per_sample.keys() == {r["sample_id"] for r in [*ROWS, FAILED]}


@pytest.mark.parametrize("num", [0, 1, 3])
def test_too_few_images_no_number(num: int) -> None:
    found = {**by_name(KID, ROWS[:num]), **by_name(PR, ROWS[:num])}
    assert {name for name, metric in found.items() if metric.value is not None} <= {"kid_mean_full"}
    assert f"needs 8 images on each side for a subset, has {num} and {num}" in found["kid_mean"].reason
    assert "needs more than 3 images" in found["precision_mean"].reason
    assert (found["kid_mean_full"].value is None) == (num < 2)


def test_perfect_pictures() -> None:
    perfect = [{**r, "image": {"bytes": png_of(image)}} for r, image in zip(ROWS, renders(ROWS), strict=True)]
    found = {**by_name(KID, perfect), **by_name(PR, perfect)}
    assert found["kid_mean_full"].value == pytest.approx(0.0, abs=1e-9)
    assert (found["precision_mean"].value, found["recall_mean"].value) == (1.0, 1.0)


def test_images_of_one_prompt_share_their_reference() -> None:
    """Four images per prompt: repeated references must neither shrink the balls nor count as a larger set."""
    rows = [row(r["prompt_id"], None, index=k, image=r["image"]["bytes"]) for r in ROWS for k in range(4)]
    found = {**by_name(KID, rows), **by_name(PR, rows)}
    assert found["precision_mean"].value == by_name(PR, ROWS)["precision_mean"].value
    assert found["precision_mean"].protocol["n_reference"] == 12
    assert found["kid_mean"].protocol["n_reference"] == 12
    assert "several images per prompt" in found["kid_mean"].protocol["note"]
    assert found["kid_mean_full"].value == pytest.approx(by_name(KID, ROWS)["kid_mean_full"].value)


def test_a_fixed_reference() -> None:
    reference = FixedReference.of_images(images(20, 1), MeanColor())
    judge = PrecisionRecallEvaluator(MeanColor(), reference=reference)
    found = by_name(judge, ROWS)
    assert (found["precision_mean"].n, found["recall_mean"].n) == (12, 20)
    assert found["recall_mean"].interval is not None
    kid = by_name(KidEvaluator(MeanColor(), reference=reference, subset_size=8), ROWS)["kid_mean_full"]
    features = MeanColor().features(images(12, 0)).astype(np.float32)
    assert kid.value == pytest.approx(unbiased_mmd(features, reference.features))


@settings(max_examples=8)
@given(st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_any_split_gives_the_same_numbers(owners: list[int]) -> None:
    for judge in (KID, PR):
        merged = FeatureState()
        for part in (2, 0, 1):
            merged = judge.merge(merged, judge.score([r for r, own in zip(ROWS, owners, strict=True) if own == part]))
        assert judge.finalize(merged) == judge.finalize(judge.score(ROWS))
