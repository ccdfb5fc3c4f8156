"""GenEval's rules against vectors computed with upstream's own functions, and the options they do not cover."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.geneval import Detection, Thresholds, judge, relations, select_instances
from mulosd.errors import ConfigError
from mulosd.prompts import load_prompts
from mulosd.types import GENEVAL_TASKS

GOLDEN = json.loads((Path(__file__).parents[2] / "fixtures" / "geneval_golden_vectors.json").read_text())


def test_the_vectors_are_all_there() -> None:
    assert len(GOLDEN["relation_vectors"]) == 37
    assert len(GOLDEN["rule_vectors"]) == 10


@pytest.mark.parametrize("vector", GOLDEN["relation_vectors"], ids=str)
def test_relations(vector: dict) -> None:
    assert set(relations(vector["a"], vector["b"], GOLDEN["position_threshold"])) == set(vector["a_relative_to_b"])


@pytest.mark.parametrize("vector", GOLDEN["rule_vectors"], ids=lambda v: v["name"])
def test_verdicts(vector: dict) -> None:
    colors = {}
    detections = []
    for name, instances in vector["objects"].items():
        for entry in instances:
            found = Detection(name, tuple(entry["box"]), entry["score"])
            colors[name, found.box] = entry["color"]
            detections.append(found)
    objects = select_instances(detections, vector["metadata"]["tag"])
    verdict = judge(objects, vector["metadata"], lambda d: colors[d.name, d.box])
    assert verdict == (vector["correct"], vector["reason"])


def _dogs(*scores: float) -> list[Detection]:
    return [Detection("dog", (20.0 * i, 0.0, 20.0 * i + 9, 9.0), score) for i, score in enumerate(scores)]


def test_thresholds_are_strict_and_counting_has_its_own() -> None:
    assert select_instances(_dogs(0.3), "single_object") == {}
    assert [d.score for d in select_instances(_dogs(0.31, 0.9), "colors")["dog"]] == [0.9, 0.31]
    assert select_instances(_dogs(0.9), "counting") == {}
    assert len(select_instances(_dogs(0.91), "counting")["dog"]) == 1


def test_at_most_sixteen_instances_are_kept() -> None:
    assert len(select_instances(_dogs(*[0.95] * 20), "counting")["dog"]) == 16


def test_overlapping_instances_stay_unless_suppression_is_asked_for() -> None:
    twins = [Detection("dog", (0.0, 0.0, 9.0, 9.0), 0.9), Detection("dog", (0.0, 0.0, 9.0, 8.0), 0.8)]
    assert len(select_instances(twins, "two_object")["dog"]) == 2
    assert [d.score for d in select_instances(twins, "two_object", Thresholds(max_overlap=0.5))["dog"]] == [0.9]
    # A box covers its last pixel too: 90 of 100 cells are shared.
    assert len(select_instances(twins, "two_object", Thresholds(max_overlap=0.9))["dog"]) == 1
    assert len(select_instances(twins, "two_object", Thresholds(max_overlap=0.91))["dog"]) == 2


def test_color_is_read_for_the_most_confident_instances_only() -> None:
    asked: list[float] = []

    def color_of(found: Detection) -> str:
        asked.append(found.score)
        return "red"

    clause = {"class": "dog", "count": 1, "color": "red"}
    assert judge(select_instances(_dogs(0.5, 0.8), "colors"), {"include": [clause]}, color_of).correct
    assert asked == [0.8]


def test_a_position_clause_without_its_target_is_wrong() -> None:
    metadata = {
        "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]}],
    }
    verdict = judge({"dog": _dogs(0.9)}, metadata, lambda _: "red")
    assert verdict == (False, "expected cat>=1, found 0\nno target for dog to be left of")


def test_extra_objects_do_no_harm_outside_counting() -> None:
    clause = {"class": "dog", "count": 1}
    assert judge({"dog": _dogs(0.9, 0.8), "cat": _dogs(0.7)}, {"include": [clause]}, lambda _: "red").correct


_boxes = st.tuples(*[st.integers(0, 60)] * 2, *[st.integers(61, 120)] * 2)


@given(_boxes, _boxes)
def test_relations_are_opposite_when_seen_from_the_other_side(a: tuple, b: tuple) -> None:
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert {opposite[word] for word in relations(a, b)} == set(relations(b, a))


@pytest.mark.parametrize(
    "wrong", [{"score": 1.5}, {"counting": -0.1}, {"max_objects": 0}, {"position": float("nan")}], ids=str
)
def test_thresholds_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Thresholds(**wrong)


def test_the_tasks_are_those_of_the_official_prompts() -> None:
    assert {prompt.metadata["tag"] for prompt in load_prompts({"name": "geneval"})} == set(GENEVAL_TASKS)
