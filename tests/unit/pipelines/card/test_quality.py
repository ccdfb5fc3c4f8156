"""Verdicts and choices against numbers made by hand; every rule of the gate is shown to fail."""

from typing import Any

import pytest

from mulosd.errors import DataError
from pipelines.card.quality import advantage, by_caption, choose, distinct, gate, summarise


def entry(value: float | None) -> dict[str, Any]:
    return {"value": value, "interval": None, "n": 10}


def summary(overall: float | None, detail: float | None = 1.0) -> dict[str, Any]:
    return {"geneval/overall": entry(overall), "detail/accuracy": entry(detail)}


def draft(accuracy: float | None, value: float | None, error: float | None = 0.01) -> dict[str, Any]:
    found = {"value": value, "interval": None, "standard_error": error, "n": 10}
    return {"accuracy": accuracy, "advantage": found}


PASSING: dict[str, Any] = {
    "n": 900,
    "vq": {"mid": summary(0.95, 0.9)},
    "ar": {"mid": summary(0.5, 0.4)},
    "detail": {"mid": {"repeat": draft(0.1, 0.3), "bicubic": draft(0.3, 0.1)}},
}


def test_the_gate_at_its_limits_is_passed() -> None:
    verdict = gate(**PASSING)
    assert verdict["passed"]
    against = verdict["discriminability"]["targets"]["mid"]
    assert (against["upsampler"], against["ar"], against["draft_only"]) == ("bicubic", 0.4, 0.3)


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"n": 899}, "sample_size"),
        ({"vq": {"mid": summary(0.9499, 0.9)}}, "vq_reconstruction"),
        ({"vq": {"mid": summary(0.95, 0.9), "high": summary(None)}}, "vq_reconstruction"),
        ({"vq": {}}, "vq_reconstruction"),
        ({"vq": {"mid": summary(0.95, 0.8999)}}, "vq_detail"),
        ({"ar": {"mid": summary(0.4999)}}, "ar_overall"),
        ({"detail": {"mid": {"repeat": draft(0.1, 0.3), "bicubic": draft(0.3, 0.0999)}}}, "discriminability"),
        ({"detail": {"mid": {"bicubic": draft(0.3, 0.2, error=0.11)}}}, "discriminability"),
        ({"detail": {"mid": {"bicubic": draft(0.3, 0.2, error=None)}}}, "discriminability"),
        ({"detail": {"mid": {"bicubic": draft(None, None)}}}, "discriminability"),
        ({"detail": {}}, "discriminability"),
    ],
)
def test_each_rule_can_fail(change: dict[str, Any], failed: str) -> None:
    verdict = gate(**{**PASSING, **change})
    assert not verdict["passed"]
    assert not verdict[failed]["passed"]


def test_the_best_guidance_is_the_lowest_among_equals() -> None:
    assert choose({4.0: summary(0.5), 2.0: summary(0.5), 1.5: summary(0.4)}) == 2.0
    with pytest.raises(DataError, match="no overall score"):
        choose({2.0: summary(0.5), 3.0: summary(None)})
    with pytest.raises(DataError, match="no overall score"):
        choose({})


def test_images_of_one_caption_are_one_cluster() -> None:
    captions = {f"scenes/test-{i:05d}/0": "a photo of a circle" if i < 6 else f"caption {i}" for i in range(9)}
    renamed = by_caption(dict.fromkeys(captions, 1.0), captions)
    assert len(renamed) == 9
    assert {key.rpartition("/")[0] for key in renamed} == {"a photo of a circle", "caption 6", "caption 7", "caption 8"}


def test_the_advantage_is_paired_and_clustered() -> None:
    ar = {f"s/{i}/0": float(i % 2 == 0) for i in range(8)}
    none = dict.fromkeys([*ar, "s/99/0"], 0.0)
    alone = {key: key for key in none}
    found = advantage(ar, none, alone)
    assert (found["value"], found["n"], found["n_unpaired"]) == (0.5, 8, 1)
    assert found["standard_error"] == pytest.approx((0.25 * 8 / 7 / 8) ** 0.5, abs=1e-6)
    pairs = {key: f"caption {i // 2 if i % 2 == 0 else (i - 1) // 2 + 10}" for i, key in enumerate(none)}
    assert advantage(ar, none, pairs)["standard_error"] == pytest.approx(found["standard_error"])
    halves = {key: str(i % 2) for i, key in enumerate(none)}
    assert advantage(ar, none, halves)["standard_error"] == pytest.approx(0.5)
    same = advantage(ar, none, dict.fromkeys(none, "one caption"))
    assert same["standard_error"] is None
    assert same["interval"] is None
    assert advantage({}, none, alone)["value"] is None


def metrics(correct: dict[str, dict[str, float]], overall: float | None) -> dict[str, dict[str, Any]]:
    """JSON forms of GenEval and detail metrics; correct: task -> sample -> 0 or 1."""

    def metric(name: str, values: dict[str, float], value: float | None = None) -> dict[str, Any]:
        mean = sum(values.values()) / len(values) if values and value is None else value
        return {"name": name, "value": mean, "n": len(values), "n_missing": 0, "per_sample": values, "reason": "none"}

    every = {key: value for task in correct.values() for key, value in task.items()}
    tasks = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
    found = {f"geneval/{task}": metric(task, correct.get(task, {})) for task in tasks}
    found["geneval/overall"] = {**metric("overall", every, overall), "value": overall}
    found["geneval/image_mean"] = metric("image_mean", every)
    return found | {name: metric(name, {}) for name in ("detail/accuracy", "detail/object_found")}


def test_a_summary_keeps_the_evaluators_values() -> None:
    right = {
        "colors": {"a/1/0": 1.0, "a/2/0": 0.0, "a/3/0": 1.0, "a/4/0": 1.0},
        "counting": {"a/5/0": 0.0, "a/6/0": 1.0},
    }
    captions = {f"a/{i}/0": f"caption {i}" for i in range(1, 7)}
    found = summarise(metrics(right, 0.625), captions)
    assert found["geneval/overall"]["value"] == 0.625  # mean of 3/4 and 1/2
    assert found["geneval/image_mean"]["value"] == pytest.approx(4 / 6, abs=1e-6)
    assert found["geneval/colors"]["clusters"] == 4
    assert "geneval/position" not in found
    assert found["detail/accuracy"] == {"value": None, "interval": None, "n": 0, "reason": "none"}
    merged = summarise(metrics(right, 0.625), dict.fromkeys(captions, "one"))
    assert merged["geneval/colors"]["interval"] is None
    assert "two prompts" in merged["geneval/colors"]["reason"]


def test_a_value_that_its_samples_contradict_is_a_bug() -> None:
    right = {"colors": {"a/1/0": 1.0, "a/2/0": 0.0}}
    with pytest.raises(RuntimeError, match="by the evaluator"):
        summarise(metrics(right, 0.75))


def test_captions_are_counted_against_the_scan() -> None:
    assert distinct(["a", "a", "b", "c"], ["a", "d"]) == {"captions": 3, "captions_in_scan": 1}
