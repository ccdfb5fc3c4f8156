"""Planned prompt numbers against simulated sweeps: they must show what they promise."""

import numpy as np
import pytest

from evaluators.statistics.intervals import bootstrap_mean
from mulosd.errors import ConfigError
from mulosd.types import GENEVAL_TASKS, Prompt
from pipelines.compare.power import (
    POWER,
    Assumptions,
    describe_power,
    design_of,
    prompts_for_difference,
    prompts_for_non_inferiority,
    smallest_difference,
)

RUNS = 300


def drawn(rng: np.random.Generator, num: int, difference: float, discordance: float) -> dict[str, float]:
    """A prompt's difference: +1 or -1 where the methods disagree, 0 elsewhere."""
    up, down = (discordance + difference) / 2, (discordance - difference) / 2
    values = rng.choice([1.0, -1.0, 0.0], size=num, p=[up, down, 1 - up - down])
    return {f"b/{i}/0": value for i, value in enumerate(values)}


def share_shown(num: int, difference: float, discordance: float, limit: float) -> float:
    """How often the lower limit of the interval lies above `limit`."""
    rng = np.random.default_rng(num)
    found = [bootstrap_mean(drawn(rng, num, difference, discordance), resamples=400, seed=i) for i in range(RUNS)]
    return float(np.mean([e.interval is not None and e.interval.low > limit for e in found]))


@pytest.mark.parametrize(("difference", "discordance"), [(0.1, 0.2), (0.1, 0.3), (0.2, 0.3)])
def test_the_planned_number_shows_the_difference(difference: float, discordance: float) -> None:
    num = prompts_for_difference(difference, Assumptions(discordance))
    assert share_shown(num, difference, discordance, 0.0) == pytest.approx(POWER, abs=0.08)
    assert share_shown(num // 3, difference, discordance, 0.0) < POWER - 0.2


def test_the_planned_number_shows_non_inferiority() -> None:
    num = prompts_for_non_inferiority(0.1, Assumptions(0.2))
    assert share_shown(num, 0.0, 0.2, -0.1) == pytest.approx(POWER, abs=0.08)


def test_by_hand() -> None:
    # (1.95996 + 0.84162)^2 (0.2 - 0.01) / 0.01 = 149.1
    assert prompts_for_difference(0.1, Assumptions(0.2)) == 150
    assert prompts_for_difference(-0.1, Assumptions(0.2)) == 150
    assert prompts_for_non_inferiority(0.05, Assumptions(0.2)) == 628


def test_the_smallest_difference_is_the_inverse() -> None:
    for what in (Assumptions(0.2), Assumptions(0.3, images=4, icc=0.2, design=1.3)):
        for difference in (0.03, 0.1):
            num = prompts_for_difference(difference, what)
            assert smallest_difference(num, what) == pytest.approx(difference, rel=0.02)
    assert smallest_difference(10, Assumptions(0.1)) is None


def test_more_images_help_less_than_more_prompts() -> None:
    one, four = Assumptions(0.2), Assumptions(0.2, images=4, icc=0.5)
    ratio = prompts_for_difference(0.05, one) / prompts_for_difference(0.05, four)
    assert ratio == pytest.approx(4 / 2.5, rel=0.01)
    same = Assumptions(0.2, images=4, icc=1.0)
    assert prompts_for_difference(0.05, same) == prompts_for_difference(0.05, one)


def prompts(*counts: int) -> list[Prompt]:
    tags = [task for task, count in zip(GENEVAL_TASKS, counts, strict=True) for _ in range(count)]
    return [Prompt("scenes", str(i), "a", {"tag": tag}) for i, tag in enumerate(tags)]


def test_unequal_tasks_cost_prompts() -> None:
    assert design_of(prompts(5, 5, 5, 5, 5, 5)) == pytest.approx(1.0)
    # n / 36 (5 / 2 + 1 / 10) with n = 20
    assert design_of(prompts(2, 2, 2, 2, 2, 10)) == pytest.approx(20 / 36 * 2.6)
    assert design_of([Prompt("coco", "1", "a")]) == 1.0
    with pytest.raises(ConfigError, match="no prompt of"):
        design_of(prompts(1, 1, 1, 1, 1, 0))


def test_the_design_is_the_variance_of_the_mean_of_task_means() -> None:
    counts = (2, 3, 4, 5, 6, 20)
    rng = np.random.default_rng(1)
    means = [np.mean([rng.normal(0, 1, count).mean() for count in counts]) for _ in range(4000)]
    assert np.var(means) * sum(counts) == pytest.approx(design_of(prompts(*counts)), rel=0.1)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: prompts_for_difference(0.3, Assumptions(0.2)), "raise the discordance"),
        (lambda: prompts_for_difference(0.0, Assumptions(0.2)), "cannot be shown"),
        (lambda: prompts_for_non_inferiority(0.0, Assumptions(0.2)), "above 0"),
        (lambda: Assumptions(0.0), "a share above 0"),
        (lambda: Assumptions(1.5), "a share above 0"),
        (lambda: Assumptions(0.5, icc=2.0), "icc"),
    ],
)
def test_refused(call, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        call()


def test_lines_state_the_assumptions() -> None:
    lines = describe_power(prompts(8, 8, 8, 8, 8, 8), images=2, margin=0.05, differences=[0.1, 0.3], discordances=[0.2])
    text = "\n".join(lines)
    assert "probability 0.8" in text
    assert "normal approximation" in text
    assert "correlate by 0.5" in text
    # 150 of `test_by_hand` times (1 + 0.5) / 2; a difference of 0.3 cannot come from 0.2.
    assert lines[-1].split()[:7] == ["20", "%", "of", "prompts", "112", "–", "471"]
