"""Tests of "no difference" between two sides of a comparison, with whole prompts as units, and the share of wins.

In: mappings sample_id -> value of both sides; only samples that both have are used. Exact where that is affordable;
random draws have a fixed seed. Knows no metric.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from evaluators.statistics.intervals import NOTHING_SHARED, prompt_of, wilson_interval
from mulosd.errors import DataError
from mulosd.types import Estimate, Floats, Interval, Values

FLIPS = 10_000  # random sign patterns where not all are tried
MAX_EXACT = 14  # prompts with a difference up to which all 2^n patterns are tried
SEED = 0
_BLOCK = 512  # sign patterns at a time: bounds the memory


@dataclass(frozen=True)
class PairedTest:
    """name: which test; p_value: two-sided; note: what it rests on; n: prompts."""

    name: str
    p_value: float
    note: str
    n: int


@dataclass(frozen=True)
class Wins:
    """Prompts on which the first side is better, equal or worse (means over a prompt's shared images)."""

    better: int
    equal: int
    worse: int

    @property
    def rate(self) -> float:
        """Share of prompts won, a tie counting half."""
        return (self.better + self.equal / 2) / (self.better + self.equal + self.worse)


def count_wins(a: Values, b: Values, *, direction: Literal["higher", "lower"] = "higher") -> Wins:
    """Wins of `a`; direction: which values are better. Raises DataError when nothing is shared."""
    means = _by_prompt({key: a[key] - b[key] for key in _shared(a, b)})
    signed = [math.fsum(gaps) * (1 if direction == "higher" else -1) for gaps in means.values()]
    return Wins(sum(s > 0 for s in signed), sum(s == 0 for s in signed), sum(s < 0 for s in signed))


def limits_where_all_agree(estimate: Estimate, a: Values, b: Values, *, whole: float | None) -> Estimate:
    """The paired difference `estimate` of a metric, with limits that have a width where no pair of a share varies.

    whole: what `share_whole` says of the metric; None, as of counts, leaves every estimate as it is. A bootstrap of
    equal differences has no width: "the same on all 6 prompts" would pass for certain equality. The limits of a share
    are then the difference ± Wilson's upper limit for 0 of n prompts being otherwise, inside [-whole, whole].
    """
    gaps = {a[key] - b[key] for key in a.keys() & b.keys()}
    if whole is None or estimate.value is None or estimate.interval is None or len(gaps) != 1:
        return estimate
    width = whole * wilson_interval(0, estimate.n_clusters).high
    return replace(estimate, interval=Interval(max(-whole, estimate.value - width), min(whole, estimate.value + width)))


def has_one_image_per_prompt(a: Values, b: Values) -> bool:
    """Whether each shared prompt has a single shared image."""
    shared = _shared(a, b)
    return len({prompt_of(key) for key in shared}) == len(shared)


def mcnemar_exact(a: Values, b: Values) -> PairedTest:
    """Exact McNemar test: given that the sides disagree on n prompts, each is as likely to be the right one.

    p = min(1, 2 P(Binomial(n, 1/2) <= min of the two counts)). Raises DataError unless all values are 0 or 1 and each
    prompt has one image (several of one prompt are not independent).
    """
    shared = _shared(a, b)
    wrong = [key for key in shared if a[key] not in (0, 1) or b[key] not in (0, 1)]
    if wrong:
        raise DataError(f"sample {wrong[0]!r} is neither right nor wrong; McNemar's test needs values of 0 or 1.")
    if not has_one_image_per_prompt(a, b):
        raise DataError("McNemar's test needs one image per prompt; use the sign-flip test by prompt.")
    only_a = sum(a[key] > b[key] for key in shared)
    only_b = sum(a[key] < b[key] for key in shared)
    n = only_a + only_b
    tail = sum(math.comb(n, i) for i in range(min(only_a, only_b) + 1))
    note = f"only the first right on {only_a} prompts, only the second on {only_b}"
    # Integers until the end: 2^-n underflows from n = 1075 on.
    return PairedTest("McNemar, exact", min(1.0, 2 * tail / 2**n), note, len(shared))


def sign_flip_test(a: Values, b: Values, *, strata: Mapping[str, str] | None = None) -> PairedTest:
    """Permutation test: under no difference the two sides of a prompt may be swapped, all its images together.

    The statistic is the mean of a - b, or with `strata` (sample_id -> stratum) the unweighted mean of the strata's
    means. All 2^n swaps for up to `MAX_EXACT` prompts that differ, else `FLIPS` random ones and the observed one.
    """
    shared = _shared(a, b)
    names = [strata[key] if strata else "" for key in shared]
    counts = {name: names.count(name) for name in set(names)}
    parts = {key: (a[key] - b[key]) / (counts[name] * len(counts)) for key, name in zip(shared, names, strict=True)}
    sums = np.array([math.fsum(gaps) for gaps in _by_prompt(parts).values()])
    moved = sums[sums != 0]
    if not moved.size:
        return PairedTest("sign flips by prompt", 1.0, "no prompt differs", len(sums))
    # Rounding, whose size is that of the terms and not of their sum, must not make a swap less extreme than its equal.
    limit = abs(math.fsum(moved)) - 1e-9 * math.fsum(np.abs(moved))
    if moved.size <= MAX_EXACT:
        extreme, total = _count(moved, limit, None), 1 << moved.size
        return PairedTest("sign flips by prompt, exact", extreme / total, f"all {total} swaps", len(sums))
    extreme = _count(moved, limit, np.random.default_rng(SEED))
    p_value = (1 + extreme) / (1 + FLIPS)
    return PairedTest("sign flips by prompt", p_value, f"{FLIPS} random swaps", len(sums))


def _count(moved: Floats, limit: float, rng: np.random.Generator | None) -> int:
    """How many sign patterns give a sum at least as far from zero as `limit`: all patterns, or random ones."""
    total = FLIPS if rng is not None else 1 << moved.size
    found = 0
    for start in range(0, total, _BLOCK):
        num = min(_BLOCK, total - start)
        if rng is not None:
            bits = rng.integers(0, 2, size=(num, moved.size), dtype=np.int8)
        else:
            bits = ((np.arange(start, start + num)[:, None] >> np.arange(moved.size)) & 1).astype(np.int8)
        found += int((np.abs((2.0 * bits - 1.0) @ moved) >= limit).sum())
    return found


def _by_prompt(values: Values) -> dict[str, list[float]]:
    """Prompt -> values of its images, prompts in sorted order."""
    found: dict[str, list[float]] = {}
    for key in sorted(values):
        found.setdefault(prompt_of(key), []).append(values[key])
    return found


def _shared(a: Values, b: Values) -> list[str]:
    shared = sorted(a.keys() & b.keys())
    if not shared:
        raise DataError(NOTHING_SHARED)
    return shared
