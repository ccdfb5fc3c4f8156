"""Intervals and paired comparisons over per-sample values.

In: mappings sample_id -> value, as in `Metric.per_sample`. Out: estimates with 95 % limits. Samples of one prompt are
correlated, so whole prompts are resampled; the seed is fixed, so the same values give the
same limits whatever their order. A missing sample is left out and counted, never taken as 0. Knows no metric.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mulosd.errors import DataError
from mulosd.types import Estimate, Floats, Interval, Values

RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 0
NOTHING_SHARED = "no value to average: no sample has a score on every side; check n_missing and the prompt sets."

# Prompt indices drawn at a time (8 bytes each): bounds the memory, and small enough to stay in a core's cache.
_BLOCK = 1 << 17


@dataclass(frozen=True)
class NonInferiority:
    """The verdict with the limit that decided (None without an interval) and the margin."""

    verdict: Literal["non-inferior", "inferior", "not shown"]
    limit: float | None
    margin: float


def prompt_of(sample_id: str) -> str:
    """The prompt part of `<benchmark>/<prompt_id>/<image_index>`: the unit that is resampled."""
    head, slash, _ = sample_id.rpartition("/")
    return head if slash else sample_id


def wilson_interval(successes: float, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a proportion; sensible at 0 and n, where a bootstrap has no width.

    Raises ValueError when n < 1 or successes is outside [0, n].
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"successes = {successes} of n = {n}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low, high)


def bootstrap_mean(
    values: Values,
    *,
    strata: Mapping[str, str] | None = None,
    pooled: bool = False,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Mean of the values with percentile limits from resampled prompts.

    With `strata` (sample_id -> stratum) prompts are resampled inside their stratum and the value is the unweighted mean
    of the strata's means (GenEval's overall), or with `pooled` the plain mean over all samples. Raises DataError
    without values.
    """
    ones = dict.fromkeys(values, 1.0)
    return _bootstrap_ratio(values, ones, strata=strata, pooled=pooled, resamples=resamples, seed=seed)


def bootstrap_proportion(
    values: Values,
    *,
    strata: Mapping[str, str] | None = None,
    pooled: bool = False,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """`bootstrap_mean` of 0/1 values; where all agree, Wilson's limits with the number of prompts as n."""
    return _where_all_agree(bootstrap_mean(values, strata=strata, pooled=pooled, resamples=resamples, seed=seed))


def paired_difference(
    a: Values,
    b: Values,
    *,
    strata: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Mean of a - b over the samples both have (positive: a is higher); `strata` as in `bootstrap_mean`."""
    return paired_contrast([a, b], [1.0, -1.0], strata=strata, resamples=resamples, seed=seed)


def paired_contrast(
    series: Sequence[Values],
    weights: Sequence[float],
    *,
    strata: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Estimate:
    """Mean of sum_i weights[i] * series[i] over the samples all series have.

    "Keeps half of AR's advantage over draft-only" is [method, ar, draft_only] with [1, -0.5, -0.5] above 0.
    """
    shared = _shared(series)
    mixed = {key: sum(w * s[key] for w, s in zip(weights, series, strict=True)) for key in shared}
    estimate = bootstrap_mean(mixed, strata=strata, resamples=resamples, seed=seed)
    return _with_unpaired(estimate, series, len(shared))


def ratio_of_totals(
    numerator: Values, denominator: Values, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Estimate:
    """sum(numerator) / sum(denominator) over shared samples, both resampled together (latency and forward ratios).

    Raises DataError unless every denominator is positive.
    """
    shared = _shared([numerator, denominator])
    _check_positive({key: denominator[key] for key in shared})
    top = {key: numerator[key] for key in shared}
    bottom = {key: denominator[key] for key in shared}
    estimate = _bootstrap_ratio(top, bottom, resamples=resamples, seed=seed)
    return _with_unpaired(estimate, [numerator, denominator], len(shared))


def share_of_totals(part: Values, whole: Values) -> Estimate:
    """`ratio_of_totals` of parts and their wholes; where all agree, Wilson's limits with the number of prompts as n."""
    return _where_all_agree(ratio_of_totals(part, whole))


def median_of_ratios(
    numerator: Values, denominator: Values, *, resamples: int = RESAMPLES, seed: int = SEED
) -> Estimate:
    """Median over prompts of the paired ratio of a prompt's totals; stands beside the ratio of totals."""
    shared = _shared([numerator, denominator])
    if not shared:
        raise DataError(NOTHING_SHARED)
    _check_positive({key: denominator[key] for key in shared})
    groups = _Clusters.of({k: numerator[k] for k in shared}, {k: denominator[k] for k in shared})
    ratios = np.sort(groups.top / groups.bottom)
    value = float(np.median(ratios))
    rng = np.random.default_rng(seed)
    draws = np.concatenate([np.median(ratios[pick], axis=1) for pick in _picks(len(ratios), resamples, rng)])
    estimate = _finish(value, draws, len(shared), len(ratios))
    return _with_unpaired(estimate, [numerator, denominator], len(shared))


def non_inferiority(
    difference: Estimate, *, margin: float, direction: Literal["higher", "lower"] = "higher"
) -> NonInferiority:
    """Whether candidate - baseline is shown to be no worse than `margin` (in the metric's unit, > 0).

    direction: which values are better. Non-inferior when the whole two-sided 95 % interval is on the good side of the
    margin, inferior when all of it is beyond; otherwise nothing is shown, which is not the same as equal.
    """
    if not margin > 0 or not math.isfinite(margin):
        raise ValueError(f"margin = {margin}; a non-inferiority margin is a finite number above 0")
    if difference.interval is None:
        return NonInferiority("not shown", None, margin)
    low, high = difference.interval
    worst, best = (low, high) if direction == "higher" else (-high, -low)
    limit = low if direction == "higher" else high
    if worst > -margin:
        return NonInferiority("non-inferior", limit, margin)
    return NonInferiority("inferior" if best < -margin else "not shown", limit, margin)


def standard_error(values: Values) -> float | None:
    """Standard error of the mean of the values with whole prompts as clusters; None below two prompts.

    The linearised (sandwich) form for G clusters, sqrt(G/(G-1) sum_g e_g^2) / n with e_g the sum of a cluster's
    deviations from the mean. With one value per prompt it is s / sqrt(n).
    """
    if not values:
        return None
    groups = _Clusters.of(values, dict.fromkeys(values, 1.0))
    num = len(groups.top)
    if num < 2:
        return None
    deviations = groups.top - groups.bottom * (groups.top.sum() / groups.bottom.sum())
    return math.sqrt(num / (num - 1) * float((deviations**2).sum())) / float(groups.bottom.sum())


def describe_bootstrap(*, strata: str = "", proportion: bool = False) -> dict[str, Any]:
    """How the limits of `bootstrap_mean` (or `bootstrap_proportion`) are made, for `Metric.protocol`."""
    text = {"method": "percentile bootstrap over prompts", "resamples": RESAMPLES, "seed": SEED, "level": CONFIDENCE}
    extra = {"strata": strata, "where_all_agree": "Wilson over prompts" if proportion else ""}
    return text | {key: value for key, value in extra.items() if value}


def share_whole(metric: Mapping[str, Any]) -> float | None:
    """The value that stands for the whole of a metric that is declared as a share: 1, or 100 in points of 100.

    metric: the JSON form of a `Metric`. None for every other metric, whatever its values are. The declaration is that
    of its own interval (`describe_bootstrap` with `proportion`).
    """
    interval = metric.get("protocol", {}).get("interval")
    if not isinstance(interval, Mapping) or not interval.get("where_all_agree"):
        return None
    return 100.0 if metric.get("unit") == "points of 100" else 1.0


@dataclass(frozen=True)
class _Clusters:
    """Totals per prompt, prompts in sorted order so that the input's order does not matter."""

    top: Floats
    bottom: Floats

    @classmethod
    def of(cls, top: Values, bottom: Values, cluster: Callable[[str], str] = prompt_of) -> "_Clusters":
        names = sorted({cluster(key) for key in top})
        index = {name: i for i, name in enumerate(names)}
        where = [index[cluster(key)] for key in sorted(top)]
        keys = sorted(top)
        sums = np.zeros((2, len(names)))
        np.add.at(sums[0], where, [top[key] for key in keys])
        np.add.at(sums[1], where, [bottom[key] for key in keys])
        return cls(sums[0], sums[1])


def _bootstrap_ratio(
    top: Values,
    bottom: Values,
    *,
    resamples: int,
    seed: int,
    strata: Mapping[str, str] | None = None,
    pooled: bool = False,
) -> Estimate:
    if not top:
        raise DataError(NOTHING_SHARED)
    broken = sorted(key for key in top if not (math.isfinite(top[key]) and math.isfinite(bottom[key])))
    if broken:
        raise DataError(f"sample {broken[0]!r} has a value that is not finite; a failed sample has no value at all.")
    names = sorted({strata[key] for key in top}) if strata else [""]
    groups = []
    for name in names:
        keys = [key for key in top if not strata or strata[key] == name]
        groups.append(_Clusters.of({k: top[k] for k in keys}, {k: bottom[k] for k in keys}))
    value = float(_combined([np.array([g.top.sum(), g.bottom.sum()]) for g in groups], pooled))
    rng = np.random.default_rng(seed)
    draws = _combined([_resampled(g, resamples, rng) for g in groups], pooled)
    num_clusters = sum(len(g.top) for g in groups)
    lonely = [name for name, g in zip(names, groups, strict=True) if len(g.top) < 2]
    return _finish(value, draws, len(top), num_clusters, lonely=lonely)


def _resampled(groups: _Clusters, resamples: int, rng: np.random.Generator) -> Floats:
    """Totals above and below the line of each resample, [2, resamples]."""
    drawn = [
        np.stack([np.take(groups.top, pick).sum(axis=1), np.take(groups.bottom, pick).sum(axis=1)])
        for pick in _picks(len(groups.top), resamples, rng)
    ]
    return np.concatenate(drawn, axis=1)


def _picks(num: int, resamples: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of the prompts of each resample, [some resamples, num] at a time; the blocks' size changes no draw."""
    size = max(1, _BLOCK // num)
    for start in range(0, resamples, size):
        yield rng.integers(num, size=(min(size, resamples - start), num))


def _combined(totals: Sequence[Floats], pooled: bool) -> Floats:
    """Ratios from the strata's totals [2, ...]: of the sums when pooled, else the mean of the strata's ratios."""
    if pooled:
        top, bottom = np.sum(totals, axis=0)
        return np.asarray(top / bottom)
    return np.asarray(np.mean([top / bottom for top, bottom in totals], axis=0))


def _finish(value: float, draws: Floats, n: int, num_clusters: int, *, lonely: Sequence[str] = ()) -> Estimate:
    if num_clusters < 2 or lonely:
        where = f" in {', '.join(lonely)}" if any(lonely) else ""
        return Estimate(value, None, n, num_clusters, reason=f"an interval needs two prompts or more{where}")
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(v) for v in np.quantile(draws, [tail, 1 - tail]))
    return Estimate(value, Interval(low, high), n, num_clusters)


def _shared(series: Sequence[Values]) -> list[str]:
    return sorted(set(series[0]).intersection(*series[1:]))


def _with_unpaired(estimate: Estimate, series: Sequence[Values], num_shared: int) -> Estimate:
    lost = len(set().union(*series)) - num_shared
    return Estimate(estimate.value, estimate.interval, estimate.n, estimate.n_clusters, lost, estimate.reason)


def _where_all_agree(share: Estimate) -> Estimate:
    """The estimate of a share; at 0 and 1, where a bootstrap has no width, with Wilson's limits over prompts."""
    if share.value not in (0.0, 1.0):
        return share
    return replace(share, interval=wilson_interval(share.value * share.n_clusters, share.n_clusters), reason="")


def _check_positive(values: Values) -> None:
    wrong = sorted(key for key, value in values.items() if not value > 0)
    if wrong:
        raise DataError(f"sample {wrong[0]!r} has {values[wrong[0]]} below the fraction bar; it must be above 0.")
