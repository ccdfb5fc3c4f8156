"""The detail metric and the speed counters: known answers, nulls with reasons, merging in any order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.detail import DetailEvaluator
from evaluators.geneval import Detection
from evaluators.speed import SpeedEvaluator
from evaluators.state import SampleState
from evaluators.types import Metric
from mulosd.errors import DataError
from mulosd.types import COUNTERS
from tests.unit.evaluators.helpers import LookupDetector, png, row

STRIPED = Detection("dog", (0.0, 0.0, 4.0, 4.0), 0.9)
PLAIN = Detection("dog", (9.0, 0.0, 12.0, 4.0), 0.95)
LOOKS = {STRIPED.box: ("red", "striped"), PLAIN.box: ("blue", "plain")}
DETECTOR = LookupDetector({1: [STRIPED], 2: [PLAIN], 3: [STRIPED, PLAIN]}, looks=LOOKS)


def include(**clause: Any) -> dict[str, Any]:
    return {"tag": "colors", "include": [{"class": "dog", "count": 1, **clause}]}


def detail_of(rows: list[dict[str, Any]]) -> tuple[Metric, Metric]:
    evaluator = DetailEvaluator(DETECTOR)
    accuracy, found = evaluator.finalize(evaluator.score(rows))
    assert (accuracy.name, found.name) == ("detail/accuracy", "detail/object_found")
    return accuracy, found


@pytest.mark.parametrize(
    ("picture", "clause", "found", "correct"),
    [
        (1, {"pattern": "striped"}, 1.0, 1.0),
        (1, {"pattern": "dotted"}, 1.0, 0.0),
        (2, {"pattern": "striped"}, 1.0, 0.0),
        (0, {"pattern": "striped"}, 0.0, 0.0),
        (1, {"pattern": "striped", "class": "cat"}, 0.0, 0.0),
        (1, {"pattern": "striped", "color": "red"}, 1.0, 1.0),
        (1, {"pattern": "striped", "color": "blue"}, 0.0, 0.0),
        # Without a colour the most confident instance is read, with one the instance that is named.
        (3, {"pattern": "striped"}, 1.0, 0.0),
        (3, {"pattern": "striped", "color": "red"}, 1.0, 1.0),
        (3, {"pattern": "striped", "count": 2}, 1.0, 0.0),
        (1, {"pattern": "striped", "count": 2}, 0.0, 0.0),
    ],
)
def test_detail_of_one_image(picture: int, clause: dict, found: float, correct: float) -> None:
    accuracy, object_found = detail_of([row("a", include(**clause), image=png(picture))])
    assert (object_found.value, accuracy.value) == (found, correct)


def test_every_pattern_clause_must_hold_and_plain_clauses_do_not_count() -> None:
    both = {"include": [{"class": "dog", "count": 1, "pattern": "striped"}, {"class": "cat", "count": 1}]}
    assert detail_of([row("a", both, image=png(1))])[0].value == 1.0
    both["include"][1]["pattern"] = "dotted"
    assert detail_of([row("a", both, image=png(1))])[0].value == 0.0


def test_detail_counts_only_pattern_prompts_and_never_scores_a_failure() -> None:
    rows = [
        row("a", include(pattern="striped"), image=png(1)),
        row("b", include(pattern="striped"), image=png(2)),
        row("c", include(), image=png(0)),
        row("d", None, image=png(0)),
        row("e", include(pattern="striped"), error="out of memory"),
        row("f", include(), error="out of memory"),
    ]
    accuracy, _ = detail_of(rows)
    assert (accuracy.value, accuracy.n, accuracy.n_missing) == (0.5, 2, 1)
    assert accuracy.per_sample == {"geneval/a/0": 1.0, "geneval/b/0": 0.0}
    low, high = accuracy.interval
    assert low < 0.5 < high


@pytest.mark.parametrize("clause", [{"pattern": "tartan"}, {"pattern": "striped", "color": "teal"}])
def test_detail_words_without_a_reader_are_null(clause: dict) -> None:
    accuracy, _ = detail_of([row("a", include(**clause), image=png(1))])
    assert accuracy.value is None
    assert (clause.get("color") or clause["pattern"]) in accuracy.reason


def test_detail_without_pattern_prompts_is_null() -> None:
    accuracy, found = detail_of([row("a", include(), image=png(1))])
    assert accuracy.value is found.value is None
    assert accuracy.reason == "no prompt names a pattern"
    assert detail_of([row("a", include(pattern="striped"), error="x")])[0].reason == "no scored image"


# Speed


def counted(prompt: str, *, draft: int, verify: int, resample: int, resampled: int, num_tokens: int = 16) -> dict:
    counters = dict.fromkeys(COUNTERS, 0) | {
        "forwards_draft": draft,
        "forwards_verify": verify,
        "forwards_resample": resample,
        "tokens_fed": 2 * num_tokens,
        "resampled": resampled,
    }
    return row(prompt, None, **counters, token_ids=list(range(num_tokens)))


SPEED_ROWS = [
    counted("a", draft=2, verify=1, resample=1, resampled=4),
    counted("b", draft=2, verify=1, resample=5, resampled=12),
    row("c", None, error="out of memory"),
]


def speed_of(rows: list[dict], **options: Any) -> dict[str, Metric]:
    evaluator = SpeedEvaluator(**options)
    return {metric.name: metric for metric in evaluator.finalize(evaluator.score(rows))}


def test_speed_counts_all_kinds_of_both_models() -> None:
    metrics = speed_of(SPEED_ROWS)
    values = {name.removeprefix("speed/"): metric.value for name, metric in metrics.items()}
    assert values == {
        "forwards_per_image": 6.0,
        "forwards_draft_per_image": 2.0,
        "forwards_verify_per_image": 1.0,
        "forwards_resample_per_image": 3.0,
        "forwards_refresh_per_image": 0.0,
        "tokens_fed_per_image": 32.0,
        "resampled_fraction": 0.5,
        "step_ratio": pytest.approx(32 / 12),
    }
    assert metrics["speed/step_ratio"].per_sample == {"geneval/a/0": 4.0, "geneval/b/0": 2.0}
    assert metrics["speed/forwards_per_image"].per_sample == {"geneval/a/0": 4.0, "geneval/b/0": 8.0}
    assert {(m.n, m.n_missing) for m in metrics.values()} == {(2, 1)}
    json.dumps([metric.to_json() for metric in metrics.values()])


def test_the_tau_that_was_chosen_is_a_metric_where_one_was() -> None:
    """Mean over images of the mean over cycles; rows of before, which do not say, are missing."""
    chosen = [{**SPEED_ROWS[0], "chosen_taus": [0.1, 0.3]}, {**SPEED_ROWS[1], "chosen_taus": [0.5]}]
    silent = [counted("d", draft=2, verify=1, resample=1, resampled=4), SPEED_ROWS[2]]
    metric = speed_of([*chosen, *silent])["speed/chosen_tau"]
    assert metric.value == pytest.approx(0.35)
    assert metric.per_sample == pytest.approx({"geneval/a/0": 0.2, "geneval/b/0": 0.5})
    assert (metric.n, metric.n_missing, metric.direction) == (2, 2, "none")
    for rows in (silent, [{**one, "chosen_taus": []} for one in SPEED_ROWS]):
        assert "speed/chosen_tau" not in speed_of(rows)


def test_speed_without_a_decoded_image_is_null() -> None:
    metrics = speed_of([SPEED_ROWS[2]])
    assert {m.value for m in metrics.values()} == {None}
    assert {m.reason for m in metrics.values()} == {"no decoded image"}


def test_rows_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match="no forwards_verify and no error"):
        speed_of([{**SPEED_ROWS[0], "forwards_verify": None}])
    with pytest.raises(DataError, match="no token_ids"):
        speed_of([{**SPEED_ROWS[0], "token_ids": None}])
    with pytest.raises(DataError, match="16 tokens instead of 64"):
        speed_of(SPEED_ROWS, n_target_tokens=64)
    with pytest.raises(DataError, match="at least one token and one forward"):
        speed_of([counted("a", draft=0, verify=0, resample=0, resampled=0)])


MANY = [counted(f"p{i}", draft=i + 1, verify=1, resample=0, resampled=i) for i in range(9)]
PATTERNS = [row(f"p{i}", include(pattern="striped"), image=png(i % 3)) for i in range(9)]


@pytest.mark.parametrize(("evaluator", "rows"), [(SpeedEvaluator(), MANY), (DetailEvaluator(DETECTOR), PATTERNS)])
def test_merge_in_any_order(evaluator: Any, rows: list[dict]) -> None:
    records = evaluator.score(rows).records

    @given(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    def check(owners: list[int]) -> None:
        a, b, c = (
            SampleState({k: r for (k, r), owner in zip(records.items(), owners, strict=True) if owner == part})
            for part in range(3)
        )
        merged = evaluator.merge(evaluator.merge(a, b), c)
        assert merged == evaluator.merge(c, evaluator.merge(b, a)) == SampleState(records)

    check()
    parts = [evaluator.score(rows[i::2]) for i in range(2)]
    assert evaluator.finalize(evaluator.merge(parts[1], parts[0])) == evaluator.finalize(evaluator.score(rows))
