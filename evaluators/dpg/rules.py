"""The DPG-Bench rules (TencentQQGYLab/ELLA 3c228f1; docs/metrics.md "DPG-Bench") as pure functions over answers.

In: a prompt's questions and the answers to them for one image. Out: 0/1 per question, before and after dependencies.
Where upstream has a quirk, `Policy` names it and its alternative. This module knows no image and no answerer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_type_hints

from mulosd.errors import DataError, unknown_name

CATEGORIES = ("global", "entity", "attribute", "relation", "other")

_PUNCTUATION = ".,;:!?\"'"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What upstream does by accident or left open; the defaults are upstream's, for comparable numbers.

    answers: only the exact text "yes" counts, or also "Yes." and the like (for answerers other than upstream's).
    order: parents are looked up as questions are listed, so a parent listed after its child has no effect on it, or
    ancestors always come first. missing_parents: a parent id that no question has is an error (upstream: the prompt
    vanishes), is ignored, or counts as a parent answered "no". category_images: category scores rest on each prompt's
    last image or on all. category_values: on answers before or after dependencies.
    """

    answers: Literal["exact", "normalized"] = "exact"
    order: Literal["listed", "ancestors_first"] = "listed"
    missing_parents: Literal["error", "ignore", "zero"] = "error"
    category_images: Literal["upstream_last_image", "all_images"] = "upstream_last_image"
    category_values: Literal["raw", "after_dependency"] = "raw"

    def __post_init__(self) -> None:
        for key, kind in get_type_hints(type(self)).items():
            if getattr(self, key) not in get_args(kind):
                raise unknown_name(key, str(getattr(self, key)), get_args(kind), "dpg policy")

    def to_json(self) -> dict[str, str]:
        """A JSON-serialisable form."""
        return asdict(self)


@dataclass(frozen=True)
class Question:
    """One question. parents: ids of questions that must be answered "yes" first; category: one of CATEGORIES (L1);
    detail: upstream's L2 label, for instance "attribute - color", or the category where it has none.
    """

    id: int
    text: str
    parents: tuple[int, ...]
    category: str
    detail: str


def parse_questions(
    entries: Sequence[Mapping[str, Any]], where: str, *, missing_parents: str = "error"
) -> tuple[Question, ...]:
    """Questions of a prompt from entries with the names of DPG's table, in listed order.

    An entry has proposition_id, dependency (ids, 0 for none; a list or comma-separated text), tuple and
    question_natural_language. Raises DataError at `where` for ids that repeat or are not positive integers, an
    unknown category, a question that is its own parent and, unless missing_parents says otherwise, an unknown parent.
    """
    questions = tuple(_question(entry, f"{where}: questions[{i}]") for i, entry in enumerate(entries))
    ids = [question.id for question in questions]
    for question in questions:
        place = f"{where}: question {question.id}"
        if ids.count(question.id) > 1:
            raise DataError(f"{place} appears twice; ids must be unique in a prompt.")
        if question.id in question.parents:
            raise DataError(f"{place} depends on itself; correct its dependency.")
        unknown = [parent for parent in question.parents if parent not in ids]
        if unknown and missing_parents == "error":
            raise DataError(
                f"{place} depends on question {unknown[0]}, which this prompt does not have; restore the row (a known "
                "copy of the benchmark lacks its first), or set missing_parents to ignore or zero."
            )
    return questions


def is_yes(answer: str, policy: Policy | None = None) -> bool:
    """Whether an answer counts as yes."""
    if (policy or Policy()).answers == "exact":
        return answer == "yes"
    return answer.strip().lower().strip(_PUNCTUATION).strip() == "yes"


def after_dependency(
    raw: Mapping[int, float], questions: Sequence[Question], policy: Policy | None = None
) -> dict[int, float]:
    """Values by question id where a question with a parent at 0 becomes 0, in listed order.

    Zeros are written in place, so they cascade to questions that are looked at later. Raises DataError for a missing
    parent under the policy "error", and for a circle of parents where ancestors have to come first.
    """
    rule = policy or Policy()
    values = {question.id: float(raw[question.id]) for question in questions}
    ordered = questions if rule.order == "listed" else _ancestors_first(questions)
    for question in ordered:
        for parent in question.parents:
            if parent not in values:
                if rule.missing_parents == "error":
                    raise DataError(f"question {question.id} depends on question {parent}, which is missing.")
                if rule.missing_parents == "zero":
                    values[question.id] = 0.0
            elif values[parent] == 0.0:
                values[question.id] = 0.0
    return values


def mean_score(values: Mapping[int, float]) -> float:
    """An image's score: the mean of its questions' values. Raises ValueError without any."""
    if not values:
        raise ValueError("an image without questions has no score")
    return sum(values.values()) / len(values)


def category_of(label: str) -> tuple[str, str]:
    """(L1, L2) of a tuple text: L2 is what stands before "(", L1 what stands before the first "-"."""
    detail = label.partition("(")[0].strip()
    category = detail.partition("-")[0].strip()
    rest = detail.partition("-")[2].strip()
    return category, f"{category} - {rest}" if rest else category


def _question(entry: Mapping[str, Any], where: str) -> Question:
    texts = {}
    for key in ("tuple", "question_natural_language"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise DataError(f"{where}: {key} = {entry.get(key)!r} must be a string; give DPG's columns.")
        texts[key] = entry[key]
    category, detail = category_of(texts["tuple"])
    if category not in CATEGORIES:
        raise DataError(
            f"{where}: tuple = {texts['tuple']!r} has no known category; allowed are {', '.join(CATEGORIES)}."
        )
    (identity,) = _ids(entry.get("proposition_id"), 1, where, "proposition_id")[:1] or (0,)
    parents = _ids(entry.get("dependency"), 0, where, "dependency")
    return Question(identity, texts["question_natural_language"], tuple(p for p in parents if p != 0), category, detail)


def _ids(value: Any, low: int, where: str, key: str) -> list[int]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        numbers = [part if isinstance(part, int) and not isinstance(part, bool) else int(str(part)) for part in parts]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < low or (key == "proposition_id" and len(numbers) != 1):
        raise DataError(f"{where}: {key} = {value!r} is not allowed; ids are whole numbers from {low} on.")
    return numbers


def _ancestors_first(questions: Sequence[Question]) -> list[Question]:
    waiting, done = list(questions), []
    known = {question.id for question in questions}
    placed: set[int] = set()
    while waiting:
        ready = [q for q in waiting if all(parent in placed or parent not in known for parent in q.parents)]
        if not ready:
            circle = ", ".join(str(question.id) for question in waiting)
            raise DataError(f"questions {circle} depend on each other in a circle; correct their dependency.")
        done += ready
        placed |= {question.id for question in ready}
        waiting = [question for question in waiting if question.id not in placed]
    return done
