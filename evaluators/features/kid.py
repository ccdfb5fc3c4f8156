"""KID: unbiased squared MMD between decoded and reference features, polynomial kernel (x.y / D + 1)^3.

Two estimates of one quantity (Binkowski et al. 2018; docs/metrics.md "Metrics from features"), float64:
- `kid_<network>`: mean over random subsets of a fixed size, as torchmetrics and clean-fid report it. The subset size
  changes its noise and not what it estimates: small subsets scatter more, and at the size of the set all are the same.
- `kid_<network>_full`: every pair of images of *different prompts*, no draw. Images of one prompt depend on each other
  and on its reference; leaving their pairs out keeps the estimate unbiased over prompts and gives exactly 0 to decoded
  images that equal their references. Its limits come from a jackknife over prompts.
Both may be negative: an estimate without bias has to scatter around 0.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evaluators.features.base import FeatureEvaluator, Features, FeatureSets, FeatureState
from evaluators.statistics.intervals import CONFIDENCE, prompt_of
from evaluators.types import Metric
from mulosd.errors import ConfigError
from mulosd.types import Floats

SUBSETS = 100
# Upstream takes 1,000 of tens of thousands; a sweep here has a few hundred images.
SUBSET_SIZE = 100
SEED = 0

_BLOCK = 512  # rows of a kernel matrix held at a time

Indices = npt.NDArray[np.int64]


class SubsetEstimate(NamedTuple):
    """Mean and standard deviation (ddof 0) of the squared MMD over subsets."""

    mean: float
    sd: float


class FullEstimate(NamedTuple):
    """Squared MMD over all pairs, and its jackknife standard error (None below three prompts)."""

    value: float
    standard_error: float | None


class KidEvaluator(FeatureEvaluator):
    """`kid_<network>` and `kid_<network>_full` from the features that the Fréchet distance rests on."""

    name = "kid"
    version = "1"
    source = "features"

    def __init__(
        self, *args: Any, subsets: int = SUBSETS, subset_size: int = SUBSET_SIZE, seed: int = SEED, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        for key, value, low in (("subsets", subsets, 1), ("subset_size", subset_size, 2), ("seed", seed, 0)):
            if value < low:
                raise ConfigError(f"evaluator kid: {key} = {value} is too small; give at least {low}.")
        self._subsets, self._subset_size, self._seed = subsets, subset_size, seed

    def protocol(self) -> dict[str, Any]:
        """Network, reference, kernel and subsets."""
        return {
            **super().protocol(),
            "kernel": "(x.y / D + 1)^3, float64",
            "subsets": self._subsets,
            "subset_size": self._subset_size,
            "seed": self._seed,
        }

    def finalize(self, state: FeatureState) -> list[Metric]:
        """The mean over subsets (null below the subset size) and the full estimate (null below two prompts)."""
        sets = self.sets(state)
        return [self._subset_metric(sets), self._full_metric(sets)]

    def _subset_metric(self, sets: FeatureSets) -> Metric:
        # Every image of a prompt brings the same reference, which counts once: pairs of equals are not a sample.
        reference = distinct_rows(sets.reference)
        num = min(len(sets.decoded), len(reference))
        protocol = {**self.protocol(), "n_reference": len(reference), "paired": self.is_paired}
        protocol["interval"] = "none: subsets overlap, so their spread is no confidence interval"
        if len({prompt_of(key) for key in sets.decoded_ids}) < len(sets.decoded):
            protocol["note"] = "several images per prompt raise the value: they resemble each other"
        if num < self._subset_size:
            reason = (
                f"needs {self._subset_size} images on each side for a subset, "
                f"has {len(sets.decoded)} and {len(reference)}"
            )
            return self._metric("", None, sets, protocol, reason)
        found = subset_mmd(
            sets.decoded, reference, subsets=self._subsets, subset_size=self._subset_size, seed=self._seed
        )
        return self._metric("", found.mean, sets, {**protocol, "sd_over_subsets": found.sd}, "")

    def _full_metric(self, sets: FeatureSets) -> Metric:
        protocol = {**self.protocol(), "n_reference": len(sets.reference), "paired": self.is_paired}
        protocol |= {"pairs": "of different prompts", "interval": "jackknife over prompts, normal limits"}
        prompts, reference_prompts = ([prompt_of(key) for key in ids] for ids in (sets.decoded_ids, sets.reference_ids))
        num, num_reference = len(set(prompts)), len(set(reference_prompts))
        if min(num, num_reference) < 2:
            reason = f"needs two prompts or more on each side, has {num} and {num_reference}"
            return self._metric("_full", None, sets, protocol, reason)
        found = full_mmd(sets.decoded, prompts, sets.reference, reference_prompts)
        if found.standard_error is None:
            return self._metric("_full", found.value, sets, protocol, "an interval needs three prompts or more")
        half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * found.standard_error
        return self._metric("_full", found.value, sets, protocol, "", (found.value - half, found.value + half))

    def _metric(
        self,
        suffix: str,
        value: float | None,
        sets: FeatureSets,
        protocol: dict[str, Any],
        reason: str,
        interval: tuple[float, float] | None = None,
    ) -> Metric:
        return Metric(
            name=f"kid_{self._network.name}{suffix}",
            value=value,
            direction="lower",
            unit="squared MMD",
            n=len(sets.decoded),
            n_missing=sets.num_missing,
            version=self.version,
            interval=interval,
            protocol=protocol,
            reason=reason,
        )


def subset_mmd(x: Features, y: Features, *, subsets: int, subset_size: int, seed: int) -> SubsetEstimate:
    """The unbiased squared MMD of `subsets` pairs of subsets, drawn without replacement from x [n, D] and y [m, D].

    Raises ValueError when a side has fewer than `subset_size` rows.
    """
    if min(len(x), len(y)) < subset_size or subset_size < 2:
        raise ValueError(f"subsets of {subset_size} from {len(x)} and {len(y)} rows")
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(subsets):
        picks = (rng.permutation(len(side))[:subset_size] for side in (x, y))
        values.append(unbiased_mmd(*(side[pick] for side, pick in zip((x, y), picks, strict=True))))
    return SubsetEstimate(float(np.mean(values)), float(np.std(values)))


def unbiased_mmd(x: Features, y: Features) -> float:
    """Squared MMD of two independent samples [n, D] and [m, D], n and m >= 2 (Gretton et al. 2012, eq. 3)."""
    within = (_off_diagonal_mean(polynomial_kernel(side, side)) for side in (x, y))
    return float(sum(within) - 2.0 * polynomial_kernel(x, y).mean())


def full_mmd(x: Features, x_prompts: Sequence[str], y: Features, y_prompts: Sequence[str]) -> FullEstimate:
    """Squared MMD over all pairs of rows of different prompts; x [n, D], y [m, D] and the prompt of each row.

    The standard error is that of the jackknife which leaves out one prompt of x with its rows of y. Raises ValueError
    where a side has no pair of different prompts.
    """
    names = {name: i for i, name in enumerate(dict.fromkeys([*x_prompts, *y_prompts]))}
    groups = [np.array([names[name] for name in side], np.int64) for side in (x_prompts, y_prompts)]
    sums = [
        _pair_sums(a, groups[i], b, groups[j], len(names)) for a, i, b, j in ((x, 0, x, 0), (y, 1, y, 1), (x, 0, y, 1))
    ]
    if any(pairs.num == 0 for pairs in sums):
        raise ValueError("every pair of rows belongs to one prompt")
    value = float(_combined([pairs.total / pairs.num for pairs in sums]))
    left_out = np.unique(groups[0])
    num = len(left_out)
    if num < 3 or any((pairs.num_without[left_out] == 0).any() for pairs in sums):
        return FullEstimate(value, None)
    without = _combined([pairs.total_without[left_out] / pairs.num_without[left_out] for pairs in sums])
    spread = float(((without - without.mean()) ** 2).sum())
    return FullEstimate(value, math.sqrt((num - 1) / num * spread))


def polynomial_kernel(x: Features, y: Features) -> Floats:
    """(x.y / D + 1)^3 in float64: [n, D], [m, D] -> [n, m]."""
    product: Floats = x.astype(np.float64) @ y.astype(np.float64).T
    kernel: Floats = (product / x.shape[1] + 1.0) ** 3
    return kernel


def distinct_rows(features: Features) -> Features:
    """The rows without repetitions, first occurrences in order: [n, D] -> [m, D]."""
    _, first = np.unique(features, axis=0, return_index=True)
    return features[np.sort(first)]


class _PairSums(NamedTuple):
    """Kernel sum and number of the pairs of different groups; the same without each group, [groups]."""

    total: float
    num: int
    total_without: Floats
    num_without: Floats


def _pair_sums(a: Features, a_groups: Indices, b: Features, b_groups: Indices, num: int) -> _PairSums:
    rows, columns, within = np.zeros((3, num))
    for start in range(0, len(a), _BLOCK):
        here = a_groups[start : start + _BLOCK]
        kernel = polynomial_kernel(a[start : start + _BLOCK], b)
        rows += np.bincount(here, kernel.sum(1), num)
        columns += np.bincount(b_groups, kernel.sum(0), num)
        within += np.bincount(here, np.where(here[:, None] == b_groups, kernel, 0.0).sum(1), num)
    size_a, size_b = (np.bincount(groups, minlength=num).astype(np.float64) for groups in (a_groups, b_groups))
    shared = size_a * size_b
    total = float(rows.sum() - within.sum())
    pairs = len(a) * len(b) - float(shared.sum())
    return _PairSums(
        total,
        int(pairs),
        total - (rows - within) - (columns - within),
        pairs - (size_a * len(b) - shared) - (size_b * len(a) - shared),
    )


def _combined(means: Sequence[Any]) -> Any:
    return means[0] + means[1] - 2.0 * means[2]


def _off_diagonal_mean(kernel: Floats) -> float:
    n = len(kernel)
    return float((kernel.sum() - np.trace(kernel)) / (n * (n - 1)))
