"""DPG's aggregates from answers with a known score, and the answerer for scenes on pictures of known scenes."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.dpg import DpgEvaluator, Policy
from evaluators.dpg.scenes import ScenesVqa, background_tone
from evaluators.geneval import Detection
from evaluators.scenes.detector import ScenesDetector
from evaluators.state import SampleState
from evaluators.types import Metric
from mulosd.prompts import load_prompts
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.render import render
from mulosd.scenes.world import scene_from_json
from tests.unit.evaluators.helpers import png, png_of, row
from tests.unit.evaluators.test_dpg_rules import entry

# The picture's grey value, in binary, says which of the questions are answered "yes": bit i for question i + 1.


class BitVqa:
    def identity(self) -> dict[str, Any]:
        return {"name": "bits"}

    def cannot_answer(self, question: str) -> str:
        return "" if question.isdigit() else f"no word for {question}"

    def answer(self, image: np.ndarray, question: str) -> str:
        return "yes" if int(image[0, 0, 0]) >> (int(question) - 1) & 1 else "no"


DOG = {
    "questions": [
        entry(1, text="1"),
        entry(2, "1", "attribute - color (dog, red)", "2"),
        entry(3, "2", "attribute - texture (dog, soft)", "3"),
        entry(4, "0", "global - (photo)", "4"),
    ]
}
ONE = {"questions": [entry(1, "0", "other - count (dogs, ==2)", "1")]}


def metrics(rows: list[dict], **policy: str) -> dict[str, Metric]:
    judge = DpgEvaluator(BitVqa(), policy=Policy(**policy))  # type: ignore[arg-type]
    return {metric.name: metric for metric in judge.finalize(judge.score(rows))}


def picture(prompt: str, bits: int, index: int = 0, questions: dict | None = None) -> dict[str, Any]:
    return row(prompt, questions or DOG, index=index, image=png(bits), benchmark="dpg")


FAILED = row("a", DOG, index=2, error="out of memory", benchmark="dpg")
ROWS = [picture("a", 0b1111), picture("a", 0b1110, 1), picture("b", 1, 0, ONE)]


def test_prompts_weigh_the_same() -> None:
    found = metrics(ROWS)
    # a: 1 and 0.25 (one "no" takes two questions with it), b: 1 although it has one question and one image.
    assert found["dpg/overall"].value == pytest.approx(100 * ((1 + 0.25) / 2 + 1) / 2)
    assert (found["dpg/overall"].n, found["dpg/overall"].protocol["n_prompts"]) == (3, 2)
    assert found["dpg/overall"].per_sample == {"dpg/a/0": 100.0, "dpg/a/1": 25.0, "dpg/b/0": 100.0}
    interval = found["dpg/overall"].interval
    assert interval is not None
    assert 0 <= interval[0] < interval[1] <= 100


def test_categories_by_upstreams_quirks_and_without_them() -> None:
    last = metrics(ROWS)
    assert [last[f"dpg/{name}"].value for name in ("entity", "attribute", "global", "other")] == [0, 100, 100, 100]
    assert [last[f"dpg/{name}"].n for name in ("entity", "attribute", "attribute/color")] == [1, 2, 1]
    every = metrics(ROWS, category_images="all_images")
    assert [every[f"dpg/{name}"].value for name in ("entity", "attribute")] == [50, 100]
    after = metrics(ROWS, category_values="after_dependency")
    assert after["dpg/attribute"].value == 0
    assert last["dpg/relation"].value is None
    assert "no answered question of relation" in last["dpg/relation"].reason
    assert len({json.dumps(m["dpg/overall"].protocol["policy"]) for m in (last, every, after)}) == 3
    assert {m["dpg/overall"].value for m in (last, every, after)} == {last["dpg/overall"].value}
    assert set(last) == {
        *(f"dpg/{name}" for name in ("overall", "global", "entity", "attribute", "relation", "other")),
        *(f"dpg/{name}" for name in ("entity/whole", "attribute/color", "attribute/texture", "other/count")),
    }


def test_the_last_image_is_the_one_with_the_highest_index() -> None:
    rows = [picture("a", 0b0001, 10), picture("a", 0, 9), picture("a", 0, 0)]
    assert metrics(rows)["dpg/entity"].value == 100.0


def test_a_failed_image_is_missing_and_never_zero() -> None:
    found = metrics([*ROWS, FAILED])
    assert found["dpg/overall"].value == metrics(ROWS)["dpg/overall"].value
    assert found["dpg/overall"].n_missing == 1
    # It is a's last image: no other stands in for it.
    assert (found["dpg/entity"].value, found["dpg/entity"].n_missing) == (None, 1)
    assert (found["dpg/other"].value, found["dpg/attribute"].n_missing) == (100.0, 2)
    none = metrics([FAILED])
    assert none["dpg/overall"].value is None
    assert none["dpg/overall"].reason == "no scored image"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [(None, "carries no questions"), ({"questions": [entry(1, text="why")]}, "no word for why")],
)
def test_what_cannot_be_judged_is_null_with_the_reason(metadata: dict | None, message: str) -> None:
    found = metrics([*ROWS, row("c", metadata, image=png(), benchmark="dpg")])
    assert {metric.value for metric in found.values()} == {None}
    assert message in found["dpg/overall"].reason
    assert "1 of 4 images" in found["dpg/overall"].reason


def test_all_right_still_has_an_interval() -> None:
    found = metrics([picture(f"p{i}", 0b1111) for i in range(10)])["dpg/overall"]
    assert (found.value, found.interval and found.interval[1]) == (100.0, 100.0)
    assert found.interval is not None
    assert 60 < found.interval[0] < 90


def test_a_state_holds_every_answer() -> None:
    judge = DpgEvaluator(BitVqa())
    records = judge.score([*ROWS, FAILED]).records
    assert sum(len(record["answers"]) for record in records.values()) == 4 + 4 + 4 + 1
    second = {answer["id"]: answer for answer in records["dpg/a/1"]["answers"]}
    assert [(second[i]["answer"], second[i]["raw"], second[i]["after_dependency"]) for i in (1, 2, 4)] == [
        ("no", 0.0, 0.0),
        ("yes", 1.0, 0.0),
        ("yes", 1.0, 1.0),
    ]
    missing = [record for record in records.values() if record["status"] == "missing"]
    assert {answer["answer"] for record in missing for answer in record["answers"]} == {None}


JUDGE = DpgEvaluator(BitVqa())
MANY = [picture(f"p{i}", 37 * i % 16, index) for i in range(5) for index in range(2)] + [FAILED]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2), min_size=11, max_size=11))
def test_merge_is_associative_and_commutative(owners: list[int]) -> None:
    a, b, c = (JUDGE.score([r for r, own in zip(MANY, owners, strict=True) if own == part]) for part in range(3))
    left = JUDGE.merge(JUDGE.merge(a, b), c)
    assert left == JUDGE.merge(c, JUDGE.merge(b, a)) == JUDGE.merge(JUDGE.score(MANY), SampleState()) == left


def test_any_split_gives_the_same_numbers() -> None:
    joined = JUDGE.merge(JUDGE.score(MANY[7:]), JUDGE.score(MANY[:7]))
    assert JUDGE.finalize(joined) == JUDGE.finalize(JUDGE.score(MANY))


# Scenes

PROMPTS = load_prompts({"name": "dpg_scenes", "count": 25})
VQA = ScenesVqa(ScenesDetector())


def drawn(px: int) -> list[dict[str, Any]]:
    return [
        row(p.prompt_id, p.metadata, image=png_of(render(scene_from_json(p.metadata["scene"]), px))) for p in PROMPTS
    ]


def scored(rows: list[dict[str, Any]]) -> dict[str, Metric]:
    judge = DpgEvaluator(VQA)
    return {metric.name: metric for metric in judge.finalize(judge.score(rows))}


def test_true_pictures_are_all_right_and_the_lowest_grid_loses_only_patterns() -> None:
    found = scored(drawn(64))
    assert {metric.value for metric in found.values()} == {100.0}
    assert set(found) >= {"dpg/attribute/texture", "dpg/relation/spatial", "dpg/other/count", "dpg/global"}
    low = scored(drawn(32))
    assert low["dpg/attribute/texture"].value == 0.0
    assert low["dpg/attribute/texture"].n > 5
    assert {low[f"dpg/{name}"].value for name in ("global", "entity", "attribute/color", "relation", "other")} == {100}


def test_pictures_of_other_prompts_score_low() -> None:
    images = [r["image"] for r in drawn(64)]
    swapped = [{**r, "image": image} for r, image in zip(drawn(64), images[1:] + images[:1], strict=True)]
    found = scored(swapped)
    assert found["dpg/overall"].value is not None
    assert found["dpg/overall"].value < 45
    assert all(found[f"dpg/{name}"].value < 60 for name in ("global", "attribute", "relation", "other"))  # type: ignore[operator]


def test_another_word_in_a_question_turns_the_answer() -> None:
    """On a true picture exactly the true word of each kind gets a "yes"."""
    kinds = [tuple(voc.BACKGROUNDS), tuple(voc.COLORS), voc.PATTERNS, voc.RELATIONS, tuple(voc.COUNT_WORDS.values())]
    turned = 0
    for prompt in PROMPTS:
        image = render(scene_from_json(prompt.metadata["scene"]), 64)
        for asked in prompt.metadata["questions"]:
            text = asked["question_natural_language"]
            assert VQA.cannot_answer(text) == ""
            assert VQA.answer(image, text) == "yes"
            for words in kinds:
                for word in (w for w in words if f" {w}" in text and "Is there" not in text):
                    for other in set(words) - {word}:
                        changed = text.replace(f" {word}", f" {other}")
                        assert VQA.answer(image, changed) == "no", (prompt.text, changed)
                        turned += 1
    assert turned > 200


def test_absent_objects_have_no_looks_and_no_place() -> None:
    image = np.full((64, 64, 3), 236, np.uint8)
    for text in (
        "Is there a cross?",
        "Is the cross red?",
        "Are the crosses striped?",
        "Is the cross above the circle?",
    ):
        assert VQA.answer(image, text) == "no"
    assert VQA.answer(image, "Is the background white?") == "yes"


@pytest.mark.parametrize(
    "text", ["Is there a dog?", "is there a cross?", "Is there a cross", "Is the cross beige?", ""]
)
def test_other_questions_are_not_judged(text: str) -> None:
    assert "does not understand" in VQA.cannot_answer(text)
    with pytest.raises(ValueError, match="does not understand"):
        VQA.answer(np.zeros((64, 64, 3), np.uint8), text)


def test_background_tone() -> None:
    for word, tone in voc.BACKGROUNDS.items():
        noisy = np.clip(np.array(tone) + np.random.default_rng(0).normal(0, 15, (32, 32, 3)), 0, 255).astype(np.uint8)
        assert background_tone(noisy, []) == word
    assert background_tone(np.full((32, 32, 3), (65, 95, 205), np.uint8), []) == ""
    mask = np.zeros((64, 64), bool)
    mask[:, :40] = True
    image = np.full((64, 64, 3), 236, np.uint8)
    image[mask] = (56, 60, 72)
    found = [Detection("square", (0, 0, 40, 64), 1.0, mask)]
    assert (background_tone(image, found), background_tone(image, [])) == ("white", "dark")
    assert background_tone(image, [Detection("square", (0, 0, 64, 64), 1.0, np.ones((64, 64), bool))]) == ""
