"""How many prompts show a given difference: planning, before anything is decoded.

Model, for one image per prompt scored right or wrong by two methods on the same prompts: they disagree on a share
`discordance` of the prompts, their accuracies differ by `difference`, so that a prompt's difference has the variance
discordance - difference^2 (the paired-proportions form behind McNemar's test; Connor 1987). A difference is shown when
its 95 % interval excludes zero, with probability `POWER`; a normal approximation. "Non-inferior" is shown when the
lower limit is above -margin while the methods are in truth equal. Prompts are counted for GenEval's overall, the mean
of its tasks' means: `design` is what unequal tasks cost. Several images of a prompt add less than as many prompts:
their variance shrinks by (1 + (m - 1) icc) / m.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from evaluators.statistics.intervals import CONFIDENCE
from mulosd.errors import ConfigError
from mulosd.types import GENEVAL_TASKS, Prompt

POWER = 0.8
DIFFERENCES = (0.02, 0.05, 0.10)
DISCORDANCES = (0.1, 0.2, 0.3)
ICC = 0.5  # correlation of the differences of two images of one prompt, where nothing better is known


@dataclass(frozen=True)
class Assumptions:
    """discordance: share of prompts on which two methods disagree; images: per prompt; icc: see above; design: above 1
    where the tasks are unequally large.
    """

    discordance: float
    images: int = 1
    icc: float = ICC
    design: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.discordance <= 1:
            raise ConfigError(f"discordance = {self.discordance} is out of range; give a share above 0, at most 1.")
        if not 0 <= self.icc <= 1:
            raise ConfigError(f"icc = {self.icc} is out of range; allowed are 0 to 1.")


def variance(difference: float, what: Assumptions) -> float:
    """Variance of a prompt's mean difference, times the design. ConfigError where no such pair of methods exists."""
    if not 0 <= abs(difference) <= what.discordance:
        raise ConfigError(
            f"a difference of {difference:g} needs methods that disagree on at least that share of prompts, "
            f"not on {what.discordance:g}; raise the discordance."
        )
    shrink = (1 + (what.images - 1) * what.icc) / what.images
    return what.design * shrink * (what.discordance - difference**2)


def prompts_for_difference(difference: float, what: Assumptions, *, power: float = POWER) -> int:
    """Prompts with which a true `difference` is shown with probability `power`."""
    if not difference:
        raise ConfigError("a difference of 0 cannot be shown; give one above 0.")
    return _prompts(variance(difference, what), difference, power)


def prompts_for_non_inferiority(margin: float, what: Assumptions, *, power: float = POWER) -> int:
    """Prompts with which equal methods are shown to differ by less than `margin` downwards."""
    if not margin > 0:
        raise ConfigError(f"margin = {margin} is out of range; give a number above 0.")
    return _prompts(variance(0.0, what), margin, power)


def smallest_difference(num_prompts: int, what: Assumptions, *, power: float = POWER) -> float | None:
    """The smallest true difference that `num_prompts` show with probability `power`; None where even the largest
    possible one (the discordance itself) is not shown.
    """
    # n d^2 = z^2 c (p - d^2) for the variance c (p - d^2).
    factor = variance(0.0, what) / what.discordance * _z(power) ** 2
    found = math.sqrt(factor * what.discordance / (num_prompts + factor))
    return found if found <= what.discordance else None


def design_of(prompts: Sequence[Prompt]) -> float:
    """What unequal task sizes cost the mean of the tasks' means: n / T^2 sum_t 1 / n_t, 1 for equal tasks.

    1.0 for prompts without GenEval tags, whose plain mean is meant then. ConfigError when some tasks have no prompt.
    """
    counts = Counter(prompt.metadata["tag"] for prompt in prompts if prompt.metadata.get("tag") in GENEVAL_TASKS)
    if not counts:
        return 1.0
    if absent := [task for task in GENEVAL_TASKS if not counts[task]]:
        raise ConfigError(f"no prompt of {', '.join(absent)}; GenEval's overall needs all tasks, take more prompts.")
    return sum(counts.values()) / len(GENEVAL_TASKS) ** 2 * sum(1 / count for count in counts.values())


def describe_power(
    prompts: Sequence[Prompt],
    *,
    images: int,
    margin: float,
    differences: Sequence[float] = DIFFERENCES,
    discordances: Sequence[float] = DISCORDANCES,
    icc: float = ICC,
) -> list[str]:
    """Lines for `mulosd plan --power`: prompts needed, and what the sweep's own number shows, with the assumptions."""
    design = design_of(prompts)
    lines = [
        f"power: prompts needed so that a 95 % interval shows a difference with probability {POWER:g}",
        f"  assumed: right or wrong per image, {images} image(s) per prompt, paired by prompt, normal approximation, "
        f"unequal tasks cost {design:.2f}×" + (f", images of a prompt correlate by {icc:g}" if images > 1 else ""),
    ]
    heads = [f"{difference:g}" for difference in differences]
    lines.append(
        f"  {'methods disagree on':<20}"
        + "".join(f"{head:>9}" for head in heads)
        + f"{f'not worse by {margin:g}':>22}{f'shown by {len(prompts)}':>18}"
    )
    for discordance in discordances:
        what = Assumptions(discordance, images, icc, design)
        needed = [str(prompts_for_difference(d, what)) if abs(d) <= discordance else "–" for d in differences]
        smallest = smallest_difference(len(prompts), what)
        lines.append(
            f"  {f'{100 * discordance:g} % of prompts':<20}"
            + "".join(f"{n:>9}" for n in needed)
            + f"{prompts_for_non_inferiority(margin, what):>22}"
            + f"{'nothing' if smallest is None else f'{smallest:.3f}':>18}"
        )
    return lines


def _prompts(variance_of_one: float, difference: float, power: float) -> int:
    # A variance of 0 (all disagreements on one side) still needs the two prompts of an interval.
    return max(2, math.ceil(_z(power) ** 2 * variance_of_one / difference**2))


def _z(power: float) -> float:
    normal = NormalDist()
    return normal.inv_cdf(0.5 + CONFIDENCE / 2) + normal.inv_cdf(power)
