"""A metric never carries a number that is not finite."""

import math

import pytest

from evaluators.types import Metric

SCORES = {"a/1/0": 1.0, "a/2/0": 0.5}


def metric(**changes: object) -> Metric:
    fields = {"name": "m", "value": 0.75, "direction": "higher", "unit": "", "n": 2, "n_missing": 1, "version": "1"}
    return Metric(**{**fields, "interval": (0.5, 1.0), "per_sample": SCORES, **changes})  # type: ignore[arg-type]


def test_finite_metrics_stay_what_they_are() -> None:
    assert metric().finite() is not None
    assert metric().finite() == metric()
    assert metric(value=None, interval=None, per_sample={}).finite() == metric(value=None, interval=None, per_sample={})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_missing_and_the_value_null(bad: float) -> None:
    found = metric(per_sample={**SCORES, "a/3/0": bad}, n=3).finite()
    assert (found.value, found.interval, found.n, found.n_missing) == (None, None, 2, 2)
    assert found.per_sample == SCORES
    assert found.reason == "1 scores are not finite"


@pytest.mark.parametrize("change", [{"value": math.nan}, {"interval": (0.5, math.inf)}])
def test_a_value_that_is_not_finite_is_null(change: dict[str, object]) -> None:
    found = metric(**change).finite()
    assert (found.value, found.interval, found.n) == (None, None, 2)
    assert found.reason == "the value or its interval is not finite"
