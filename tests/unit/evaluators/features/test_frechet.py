"""The Fréchet distance against closed forms, scipy and torchmetrics; the network's features; states and references."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.features.base import FeatureState, FixedReference
from evaluators.features.frechet import FrechetEvaluator
from evaluators.features.frechet_statistic import frechet_distance
from evaluators.types import Metric
from mulosd.errors import DataError
from tests.unit.evaluators.helpers import png, png_of, row


class MeanColor:
    """Three features: the mean of each channel."""

    name = "mean"
    num_features = 3
    calls = 0

    def __init__(self, version: int = 1) -> None:
        self._version = version

    def identity(self) -> dict[str, Any]:
        return {"network": "mean colour", "version": self._version}

    def prepare(self) -> None:
        pass

    def features(self, images: Sequence[np.ndarray]) -> np.ndarray:
        self.calls += len(images)
        return np.array([image.mean((0, 1)) for image in images], np.float32)


def pictures(num: int, seed: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (num, 4, 4, 3)).astype(np.uint8))


IMAGES = pictures(12, 0)
ROWS = [row(f"p{i:02d}", None, image=png_of(image)) for i, image in enumerate(IMAGES)]
REFERENCE = FixedReference.of_images(pictures(20, 1), MeanColor(), batch=7)


def renders(rows: Sequence[dict]) -> list[np.ndarray]:
    return [pictures(1, 100 + int(r["prompt_id"][1:]))[0] for r in rows]


def evaluator(reference: Any = REFERENCE, **options: Any) -> FrechetEvaluator:
    return FrechetEvaluator(MeanColor(), reference=reference, **options)


def metric_of(rows: list[dict], judge: FrechetEvaluator | None = None) -> Metric:
    judge = judge or evaluator()
    (metric,) = judge.finalize(judge.score(rows))
    return metric


def moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return features.mean(0), np.cov(features, rowvar=False)


def test_closed_form_of_diagonal_gaussians() -> None:
    a, b = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 1.0])
    expected = 3.0 + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    assert frechet_distance(np.zeros(3), np.diag(a), np.ones(3), np.diag(b)) == pytest.approx(expected)
    assert frechet_distance(np.ones(3), np.diag(a), np.ones(3), np.diag(a)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ArithmeticError, match="not covariances"):
        frechet_distance(np.zeros(2), np.diag([1.0, -1.0]), np.zeros(2), np.diag([1.0, -1.0]))


@pytest.mark.parametrize("n", [200, 20])
def test_against_scipy_and_torchmetrics(n: int) -> None:
    """n = 20 of 32 features: singular covariances, where the matrix square root is only good to 1e-5."""
    from scipy.linalg import sqrtm
    from torchmetrics.image.fid import FrechetInceptionDistance

    from evaluators.features.frechet_statistic import frechet_through_torchmetrics

    rng = np.random.default_rng(2)
    a = (rng.normal(0, 1, (n, 32)) @ rng.normal(0, 1, (32, 32)) + 0.5).astype(np.float32)
    b = (rng.normal(0.3, 1, (2 * n, 32)) @ rng.normal(0, 1, (32, 32))).astype(np.float32)
    (mean_a, cov_a), (mean_b, cov_b) = (moments(x.astype(np.float64)) for x in (a, b))
    ours = frechet_through_torchmetrics(a, b)
    assert ours == pytest.approx(frechet_distance(mean_a, cov_a, mean_b, cov_b), rel=1e-9)
    root = sqrtm(cov_a @ cov_b)
    offset = ((mean_a - mean_b) ** 2).sum()
    assert ours == pytest.approx(offset + np.trace(cov_a + cov_b - 2 * root.real), rel=1e-5)
    assert ours == pytest.approx(frechet_through_torchmetrics(a, b, metric=FrechetInceptionDistance), rel=1e-5)
    assert ours == pytest.approx(frechet_through_torchmetrics(b, a), rel=1e-6)


def test_large_feature_means_do_not_spoil_the_sums() -> None:
    from evaluators.features.frechet_statistic import frechet_through_torchmetrics

    rng = np.random.default_rng(3)
    a = rng.normal(50, 1, (100, 8)).astype(np.float32)
    b = rng.normal(50, 1, (100, 8)).astype(np.float32)
    (mean_a, cov_a), (mean_b, cov_b) = (moments(x.astype(np.float64)) for x in (a, b))
    assert frechet_through_torchmetrics(a, b) == pytest.approx(frechet_distance(mean_a, cov_a, mean_b, cov_b), rel=1e-7)


def test_merging_torchmetrics_states_after_an_update() -> None:
    """A fresh torchmetrics metric cannot take a merge (its dtype is set on update), an updated one can."""
    import torch

    from evaluators.features.frechet_statistic import FrechetDistance, _FeaturesAsTheyAre, frechet_through_torchmetrics

    rng = np.random.default_rng(4)
    a, b = (torch.from_numpy(rng.normal(m, 1, (30, 4)).astype(np.float32)) for m in (0, 1))
    shards = []
    for part in (slice(0, 11), slice(11, 30)):
        shard = FrechetDistance(feature=_FeaturesAsTheyAre(4))
        shard.update(b[part], real=True)
        shard.update(a[part], real=False)
        shards.append(shard)
    shards[0].merge_state(shards[1])
    assert float(shards[0].compute()) == pytest.approx(frechet_through_torchmetrics(a.numpy(), b.numpy()), rel=1e-9)


def test_the_metric_is_named_for_its_network_and_states_n() -> None:
    metric = metric_of(ROWS)
    features = MeanColor().features(IMAGES).astype(np.float64)
    expected = frechet_distance(*moments(features), *moments(REFERENCE.features.astype(np.float64)))
    assert metric.value == pytest.approx(expected, rel=1e-6)
    assert (metric.name, metric.n, metric.n_missing, metric.interval) == ("fd_mean", 12, 0, None)
    assert metric.protocol["n_reference"] == 20
    assert metric.protocol["reference"]["sha256"] == REFERENCE.identity()["sha256"]
    assert "note" not in metric.protocol
    assert "singular" in metric_of(ROWS[:3]).protocol["note"]


@pytest.mark.parametrize("num", [0, 1])
def test_no_covariance_no_number(num: int) -> None:
    metric = metric_of([*ROWS[:num], row("x", None, error="out of memory")])
    assert (metric.value, metric.n, metric.n_missing) == (None, num, 1)
    assert f"has {num} and 20" in metric.reason


def test_failed_rows_are_missing_but_their_reference_stays() -> None:
    judge = evaluator(renders, reference_identity={"source": "renders"})
    failed = row("p90", None, error="out of memory")
    broken = row("p91", None, image=png()[:30])
    metric = metric_of([*ROWS, failed, broken], judge)
    assert (metric.n, metric.n_missing, metric.protocol["n_reference"]) == (12, 2, 14)


def test_paired_references_are_computed_once() -> None:
    network = MeanColor()
    judge = FrechetEvaluator(network, reference=renders, reference_identity={"source": "renders"})
    first = judge.score(ROWS)
    assert network.calls == 24
    assert judge.score(ROWS) is not first
    assert network.calls == 36
    expected = MeanColor().features(renders(ROWS))
    assert np.array_equal(np.stack([first.reference[r["sample_id"]] for r in ROWS]), expected)


def test_a_callable_reference_must_say_what_it_is_and_match_the_rows() -> None:
    with pytest.raises(ValueError, match="reference_identity"):
        evaluator(renders)
    judge = evaluator(lambda rows: renders(rows)[1:], reference_identity={"source": "renders"})
    with pytest.raises(ValueError, match="11 images for 12 rows"):
        judge.score(ROWS)


class Overflowing(MeanColor):
    """Gives NaN for the images of `broken`."""

    broken: Sequence[np.ndarray] = ()

    def features(self, images: Sequence[np.ndarray]) -> np.ndarray:
        found = super().features(images)
        for i, image in enumerate(images):
            if any(np.array_equal(image, other) for other in self.broken):
                found[i, 1] = np.nan
        return found


@pytest.mark.parametrize("side", ["decoded", "reference"])
def test_features_that_are_not_finite_are_missing(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overflowing, "broken", [IMAGES[4] if side == "decoded" else renders(ROWS)[4]])
    judge = FrechetEvaluator(Overflowing(), reference=renders, reference_identity={"source": "renders"})
    metric = metric_of(ROWS, judge)
    assert (metric.n, metric.n_missing, metric.protocol["n_reference"]) == (11, 1, 11)
    rest = [r for i, r in enumerate(ROWS) if i != 4]
    assert metric.value == metric_of(rest, evaluator(renders, reference_identity={"source": "renders"})).value
    monkeypatch.setattr(Overflowing, "broken", [*IMAGES, *renders(ROWS)])
    metric = metric_of(ROWS, judge)
    assert (metric.value, metric.n, metric.n_missing) == (None, 0, 12)


def test_features_of_another_shape_are_a_bug() -> None:
    class Broken(MeanColor):
        def features(self, images: Sequence[np.ndarray]) -> np.ndarray:
            return np.zeros((len(images), 2), np.float32)

    with pytest.raises(ValueError, match="broken features"):
        FrechetEvaluator(Broken(), reference=REFERENCE).score(ROWS)


def test_reference_features_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "reference.npz"
    REFERENCE.save(path)
    loaded = FixedReference.load(path)
    assert loaded.identity() == REFERENCE.identity()
    assert metric_of(ROWS, evaluator(loaded)) == metric_of(ROWS)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="another network"):
        FrechetEvaluator(MeanColor(version=2), reference=loaded)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"reference\.npz: not an archive"):
        FixedReference.load(path)
    with pytest.raises(DataError, match=r"nowhere\.npz: not an archive"):
        FixedReference.load(tmp_path / "nowhere.npz")
    np.savez(path, features=np.zeros(3), network=np.array("{}"))
    with pytest.raises(DataError, match="not finite float32"):
        FixedReference.load(path)
    with pytest.raises(DataError, match="is empty"):
        FixedReference.of_images([], MeanColor())


JUDGE = evaluator(renders, reference_identity={"source": "renders"})
WHOLE = JUDGE.score([*ROWS, row("p50", None, error="x"), row("p51", None, error="x")])


def _same(a: FeatureState, b: FeatureState) -> bool:
    halves = ((a.decoded, b.decoded), (a.reference, b.reference))
    equal = all(x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x) for x, y in halves)
    return equal and a.missing == b.missing


def _part(owners: dict[str, int], part: int) -> FeatureState:
    decoded, reference = (
        {k: v for k, v in side.items() if owners[k] == part} for side in (WHOLE.decoded, WHOLE.reference)
    )
    return FeatureState(decoded, reference, frozenset(k for k in WHOLE.missing if owners[k] == part))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2), min_size=14, max_size=14))
def test_merge_is_associative_and_commutative(owners: list[int]) -> None:
    by_id = dict(zip(sorted(WHOLE.reference), owners, strict=True))
    a, b, c = (_part(by_id, part) for part in range(3))
    left = JUDGE.merge(JUDGE.merge(a, b), c)
    assert _same(left, JUDGE.merge(a, JUDGE.merge(c, b)))
    assert _same(left, WHOLE)
    assert _same(JUDGE.merge(left, FeatureState()), WHOLE)
    assert _same(JUDGE.merge(left, a), WHOLE)


def test_any_split_gives_the_same_bits() -> None:
    parts = [JUDGE.score(ROWS[i::3]) for i in (2, 0, 1)]
    joined = JUDGE.merge(parts[0], JUDGE.merge(pickle.loads(pickle.dumps(parts[1], protocol=5)), parts[2]))
    assert JUDGE.finalize(joined) == JUDGE.finalize(JUDGE.score(ROWS))


def test_contradicting_states_are_refused() -> None:
    judge = evaluator()
    one, other = judge.score([ROWS[0]]), judge.score([{**ROWS[0], "image": ROWS[1]["image"]}])
    with pytest.raises(ValueError, match="scored twice"):
        judge.merge(one, other)
    failed = judge.score([row("p00", None, error="x")])
    for a, b in ((one, failed), (failed, one)):
        with pytest.raises(ValueError, match="missing in one state"):
            judge.merge(a, b)


def test_the_real_network_tells_scenes_from_blur_and_noise() -> None:
    """Monotone in damage; the same pictures have distance zero; batches and sizes do not matter much."""
    from scipy.ndimage import uniform_filter

    from evaluators.features.effnet import EffNetLite0Network
    from evaluators.features.frechet_statistic import frechet_through_torchmetrics
    from mulosd.scenes.render import render
    from mulosd.scenes.world import sample_scenes

    network = EffNetLite0Network()
    clean = [render(scene, 64) for scene in sample_scenes("val", 12, 0)]
    sets = {size: [uniform_filter(image, (size, size, 1)) for image in clean] for size in (3, 9)}
    base = network.features(clean)
    assert base.shape == (12, 1280)
    assert frechet_through_torchmetrics(base, base) == pytest.approx(0, abs=1e-3)
    near, far = (frechet_through_torchmetrics(network.features(images), base) for images in sets.values())
    assert 0.01 < near < far
    alone = network.features([clean[5][:, :60]])
    assert network.features([clean[0], clean[5][:, :60]])[1] == pytest.approx(alone[0], abs=1e-3)
    identity = network.identity()
    assert len(identity["weights_sha256"]) == 64
