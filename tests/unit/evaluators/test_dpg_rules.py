"""The DPG-Bench rules against upstream's recorded outputs, and every quirk with its alternative."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.dpg import CATEGORIES, Policy, Question, after_dependency, is_yes, parse_questions
from evaluators.dpg.rules import category_of, mean_score
from mulosd.errors import ConfigError, DataError

GOLDEN = json.loads((Path(__file__).parents[2] / "fixtures" / "dpg_golden_vectors.json").read_text())


def entry(number: Any, dependency: Any = "0", label: str = "entity - whole (dog)", text: str = "Is it?") -> dict:
    return {"proposition_id": number, "dependency": dependency, "tuple": label, "question_natural_language": text}


def golden_questions(case: dict[str, Any]) -> tuple[Question, ...]:
    return parse_questions([entry(key, case["dependency"][key], case["tuples"][key]) for key in case["tuples"]], "case")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_vectors(case: dict[str, Any]) -> None:
    questions = golden_questions(case)
    scores = []
    for answers in case["answers_per_image"]:
        raw = {int(key): float(is_yes(answer)) for key, answer in answers.items()}
        scores.append(mean_score(after_dependency(raw, questions)))
    expected = case["expected"]
    assert scores == expected["per_image"]
    assert sum(scores) / len(scores) == expected["prompt_score"]
    assert {str(key): value for key, value in raw.items()} == expected["upstream_category_answers_last_image_raw"]


def test_golden_vectors_are_there_and_tell_the_alternatives_apart() -> None:
    assert len(GOLDEN) == 4
    late = next(case for case in GOLDEN if "parent listed after child" in case["name"])
    raw = {int(key): float(is_yes(answer)) for key, answer in late["answers_per_image"][0].items()}
    values = after_dependency(raw, golden_questions(late), Policy(order="ancestors_first"))
    assert mean_score(values) == 0.25 != late["expected"]["prompt_score"]
    strict = next(case for case in GOLDEN if "exact lower-case" in case["name"])
    kind = [is_yes(text, Policy(answers="normalized")) for text in strict["answers_per_image"][0].values()]
    assert kind == [True, True, True, False]


GRAPHS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0]), st.lists(st.integers(0, 7), max_size=3)), min_size=1, max_size=8
)


@given(GRAPHS)
def test_listed_order_against_the_definition(graph: list[tuple[float, list[int]]]) -> None:
    """A parent listed before its child counts with its final value, one behind it with its raw answer."""
    size = len(graph)
    questions, raw = [], {}
    for i, (value, drawn) in enumerate(graph):
        parents = tuple(sorted({p % size for p in drawn} - {i}))
        questions.append(Question(i, "", parents, "entity", "entity - whole"))
        raw[i] = value

    def final(i: int) -> float:
        held = [final(p) if p < i else raw[p] for p in questions[i].parents]
        return raw[i] if all(held) else 0.0

    found = after_dependency(raw, questions)
    assert found == {i: final(i) for i in range(size)}
    assert all(found[i] <= raw[i] for i in raw)
    forward = [
        Question(q.id, "", tuple(p for p in q.parents if p < q.id), "entity", "entity - whole") for q in questions
    ]
    # With parents first both orders mean the same, however the questions are listed.
    in_order = after_dependency(raw, forward)
    assert after_dependency(raw, forward[::-1], Policy(order="ancestors_first")) == in_order


def test_missing_parents() -> None:
    entries = [entry(2, "1"), entry(3, "2"), entry(4)]
    with pytest.raises(DataError, match=r"p1: question 2 depends on question 1, which this prompt does not have"):
        parse_questions(entries, "p1")
    questions = parse_questions(entries, "p1", missing_parents="ignore")
    raw = {2: 1.0, 3: 1.0, 4: 1.0}
    assert after_dependency(raw, questions, Policy(missing_parents="ignore")) == raw
    assert after_dependency(raw, questions, Policy(missing_parents="zero")) == {2: 0.0, 3: 0.0, 4: 1.0}
    with pytest.raises(DataError, match="question 1, which is missing"):
        after_dependency(raw, questions)


def test_a_circle_has_no_ancestors_first() -> None:
    questions = parse_questions([entry(1, "2"), entry(2, "1"), entry(3)], "p1")
    assert after_dependency({1: 1.0, 2: 0.0, 3: 1.0}, questions) == {1: 0.0, 2: 0.0, 3: 1.0}
    with pytest.raises(DataError, match="questions 1, 2 depend on each other"):
        after_dependency({1: 1.0, 2: 0.0, 3: 1.0}, questions, Policy(order="ancestors_first"))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("entity - whole (dog)", ("entity", "entity - whole")),
        ("attribute - color (bus, red)", ("attribute", "attribute - color")),
        ("relation - non-spatial (a, b)", ("relation", "relation - non-spatial")),
        ("global - (photo)", ("global", "global")),
        ("global", ("global", "global")),
        ("other - count (dogs, ==3)", ("other", "other - count")),
    ],
)
def test_categories_of_tuples(label: str, expected: tuple[str, str]) -> None:
    assert category_of(label) == expected
    assert expected[0] in CATEGORIES


def test_dependencies_as_text_and_as_lists() -> None:
    asked = parse_questions([entry("1", "0"), entry(2, [1]), entry(3, "1, 2"), entry(4, 0)], "p1")
    assert [question.parents for question in asked] == [(), (1,), (1, 2), ()]
    assert [question.id for question in asked] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(1), entry(1)], "question 1 appears twice"),
        ([entry(1, "1")], "depends on itself"),
        ([entry(0)], r"questions\[0\]: proposition_id = 0"),
        ([entry(True)], r"proposition_id = True"),
        ([entry(None)], r"proposition_id = None"),
        ([entry("1,2")], r"proposition_id = '1,2'"),
        ([entry(1), entry(2, "x")], r"questions\[1\]: dependency = 'x'"),
        ([entry(1, "")], r"dependency = ''"),
        ([entry(1, -1)], r"dependency = -1"),
        ([entry(1, label="thing - whole (dog)")], "has no known category; allowed are global, entity"),
        ([entry(1, text=" ")], "question_natural_language = ' ' must be a string"),
        ([{**entry(1), "tuple": None}], "tuple = None must be a string"),
    ],
)
def test_broken_questions(entries: list[dict], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_questions(entries, "p1")


def test_policies_are_strict() -> None:
    with pytest.raises(ConfigError, match="'all_images'"):
        Policy(category_images="all_image")  # type: ignore[arg-type]
    assert Policy().to_json()["category_values"] == "raw"
    with pytest.raises(ValueError, match="without questions"):
        mean_score({})
