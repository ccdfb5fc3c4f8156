"""Aggregation: three differently named averages, nulls with reasons, missing images that are never zeros."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.geneval import Detection, GenEvalEvaluator, paired_overall_difference
from evaluators.state import SampleState
from evaluators.types import Metric
from mulosd.errors import DataError
from mulosd.types import GENEVAL_TASKS
from tests.unit.evaluators.helpers import LookupDetector, png, row

DOG = Detection("dog", (0.0, 0.0, 4.0, 4.0), 0.95)
CAT = Detection("cat", (20.0, 0.0, 24.0, 4.0), 0.95)
DETECTOR = LookupDetector({1: [DOG], 2: [DOG, CAT]})
NOTHING, ONE_DOG, DOG_AND_CAT = png(0), png(1), png(2)
WANT_DOG = {"include": [{"class": "dog", "count": 1}]}


def evaluator(**options: Any) -> GenEvalEvaluator:
    return GenEvalEvaluator(DETECTOR, DETECTOR.color, **{"colors": DETECTOR.colors, **options})


def metrics_of(rows: list[dict[str, Any]], **options: Any) -> dict[str, Metric]:
    judge = evaluator(**options)
    return {metric.name: metric for metric in judge.finalize(judge.score(rows))}


def task_rows(counts: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """task -> (right, wrong) prompts of one image each."""
    rows = []
    for task, (right, wrong) in counts.items():
        for i in range(right + wrong):
            rows.append(row(f"{task}-{i}", {"tag": task, **WANT_DOG}, image=ONE_DOG if i < right else NOTHING))
    return rows


def test_overall_is_the_mean_of_six_tasks_and_not_of_all_images() -> None:
    counts = dict.fromkeys(GENEVAL_TASKS, (2, 2)) | {"single_object": (12, 0)}
    metrics = metrics_of(task_rows(counts))
    assert metrics["geneval/overall"].value == pytest.approx((1 + 5 * 0.5) / 6)
    assert metrics["geneval/image_mean"].value == pytest.approx(22 / 32)
    assert metrics["geneval/single_object"].value == 1.0
    assert metrics["geneval/colors"].value == 0.5
    assert metrics["geneval/overall"].n == 32
    low, high = metrics["geneval/overall"].interval
    assert low < (1 + 5 * 0.5) / 6 < high
    # Twelve of twelve is no proof of certainty.
    assert metrics["geneval/single_object"].interval[0] == pytest.approx(0.7575, abs=1e-3)


def test_prompt_any_takes_the_best_sample_of_a_prompt() -> None:
    rows = []
    for task in GENEVAL_TASKS:
        for prompt in range(2):
            for index, image in enumerate([NOTHING, ONE_DOG if prompt else NOTHING]):
                rows.append(row(f"{task}{prompt}", {"tag": task, **WANT_DOG}, index=index, image=image))
    metrics = metrics_of(rows)
    assert metrics["geneval/prompt_any"].value == 0.5
    assert metrics["geneval/prompt_any"].n == 12
    assert metrics["geneval/image_mean"].value == 0.25


def test_failed_and_unreadable_images_are_missing_and_never_zero() -> None:
    rows = task_rows(dict.fromkeys(GENEVAL_TASKS, (3, 0)))
    rows.append(row("failed", {"tag": "colors", **WANT_DOG}, error="out of memory"))
    rows.append(row("broken", {"tag": "colors", **WANT_DOG}, image=b"\x89PNG\r\n\x1a\n broken"))
    rows.append(row("cut", {"tag": "colors", **WANT_DOG}, image=ONE_DOG[:45]))
    rows.append(row("empty", {"tag": "colors", **WANT_DOG}))
    colors = metrics_of(rows)["geneval/colors"]
    assert (colors.value, colors.n, colors.n_missing) == (1.0, 3, 4)
    assert "geneval/failed/0" not in colors.per_sample
    overall = metrics_of(rows)["geneval/overall"]
    assert (overall.value, overall.n_missing) == (1.0, 4)


@pytest.mark.parametrize(
    ("clause", "word"),
    [({"class": "zebra", "count": 1}, "zebra"), ({"class": "dog", "count": 1, "color": "pink"}, "pink")],
)
def test_what_the_detector_has_no_word_for_is_null(clause: dict, word: str) -> None:
    rows = [
        *task_rows(dict.fromkeys(GENEVAL_TASKS, (2, 0))),
        row("x", {"tag": "colors", "include": [clause]}, image=ONE_DOG),
    ]
    metrics = metrics_of(rows)
    for name in ("geneval/overall", "geneval/colors", "geneval/image_mean", "geneval/prompt_any"):
        assert metrics[name].value is None
        assert word in metrics[name].reason
    assert metrics["geneval/counting"].value == 1.0


def test_prompts_without_tags_are_null_with_a_reason() -> None:
    rows = [row("a", None, image=ONE_DOG, benchmark="coco"), row("b", {"image_id": 3}, error="x", benchmark="coco")]
    metrics = metrics_of(rows)
    assert len(metrics) == 9
    assert {m.value for m in metrics.values()} == {None}
    assert all("no GenEval tag" in m.reason for m in metrics.values())
    assert metrics["geneval/overall"].n_missing == 1


def test_an_absent_task_makes_overall_null() -> None:
    metrics = metrics_of(task_rows({"colors": (2, 1)}))
    assert metrics["geneval/overall"].value is None
    assert "single_object" in metrics["geneval/overall"].reason
    assert metrics["geneval/single_object"].reason == "no scored image"
    assert metrics["geneval/image_mean"].value == pytest.approx(2 / 3)


def test_no_rows_at_all() -> None:
    assert {m.value for m in metrics_of([]).values()} == {None}


def test_one_prompt_that_is_always_right_has_a_wide_interval() -> None:
    colors = metrics_of([row("a", {"tag": "colors", **WANT_DOG}, index=i, image=ONE_DOG) for i in (0, 1)])
    assert colors["geneval/colors"].value == 1.0
    assert colors["geneval/colors"].interval == pytest.approx((0.2065, 1.0), abs=1e-3)


def test_records_have_the_fields_of_upstreams_rows() -> None:
    judge = evaluator()
    state = judge.score([row("00003", {"tag": "two_object", **WANT_DOG}, index=2, image=DOG_AND_CAT)])
    (line,) = state.select("scored").values()
    assert line["filename"] == "00003/samples/00002.png"
    assert (line["tag"], line["prompt"], line["correct"], line["reason"]) == ("two_object", "prompt 00003", True, "")
    assert json.loads(line["metadata"])["include"] == WANT_DOG["include"]
    assert json.loads(line["details"])["dog"] == [[0.0, 0.0, 4.0, 4.0, 0.95]]


def test_protocol_names_detector_and_thresholds_and_is_json() -> None:
    protocol = metrics_of([])["geneval/overall"].protocol
    assert protocol["detector"] == {"name": "lookup"}
    assert protocol["thresholds"]["counting"] == 0.9
    json.dumps([metric.to_json() for metric in metrics_of(task_rows({"colors": (1, 1)})).values()])


def test_broken_metadata_is_an_error_and_not_a_missing_tag() -> None:
    broken = {**row("a", None, image=ONE_DOG), "metadata": "{"}
    with pytest.raises(DataError, match="geneval/a/0: metadata is not JSON"):
        evaluator().score([broken])


ROWS = task_rows(dict.fromkeys(GENEVAL_TASKS, (2, 1)))
RECORDS = evaluator().score(ROWS).records


@given(st.lists(st.integers(0, 2), min_size=len(ROWS), max_size=len(ROWS)))
def test_merge_is_associative_and_commutative(owners: list[int]) -> None:
    judge = evaluator()
    a, b, c = (
        SampleState({k: r for (k, r), owner in zip(RECORDS.items(), owners, strict=True) if owner == part})
        for part in range(3)
    )
    left = judge.merge(judge.merge(a, b), c)
    right = judge.merge(a, judge.merge(c, b))
    assert left == right == SampleState(RECORDS)
    assert judge.merge(left, SampleState()) == left
    assert judge.merge(left, a) == left


def test_any_split_finalizes_to_the_same_metrics() -> None:
    judge = evaluator()
    whole = judge.finalize(judge.score(ROWS))
    parts = [judge.score(ROWS[i::3]) for i in range(3)]
    joined = judge.merge(pickle.loads(pickle.dumps(parts[2])), judge.merge(parts[1], parts[0]))
    assert judge.finalize(joined) == whole


def test_two_answers_for_one_sample_are_refused() -> None:
    judge = evaluator()
    first = judge.score([row("a", {"tag": "colors", **WANT_DOG}, image=ONE_DOG)])
    second = judge.score([row("a", {"tag": "colors", **WANT_DOG}, image=NOTHING)])
    with pytest.raises(ValueError, match="scored twice"):
        judge.merge(first, second)
    with pytest.raises(ValueError, match="twice in one chunk"):
        judge.score([row("a", {}, image=ONE_DOG)] * 2)


def test_paired_overall_difference_is_the_difference_of_overalls() -> None:
    def scores(counts: dict[str, tuple[int, int]]) -> dict[str, dict[str, float]]:
        metrics = metrics_of(task_rows(counts))
        return {task: metrics[f"geneval/{task}"].per_sample for task in GENEVAL_TASKS}

    better = scores(dict.fromkeys(GENEVAL_TASKS, (8, 2)) | {"counting": (15, 5)})
    worse = scores(dict.fromkeys(GENEVAL_TASKS, (7, 3)) | {"counting": (5, 15)})
    estimate = paired_overall_difference(better, worse)
    assert estimate.value == pytest.approx((5 * 0.1 + 0.5) / 6)
    assert estimate.interval.low > 0
    assert paired_overall_difference(better, better).interval == (0.0, 0.0)
    with pytest.raises(DataError, match="counting"):
        paired_overall_difference(better, {**worse, "counting": {}})
