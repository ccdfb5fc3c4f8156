"""Comparisons against closed forms: who is compared with whom, which way a ratio goes, what is marked."""

from dataclasses import replace

import pytest

from dashboards.rows import CellRow
from dashboards.table import COLUMNS, build_table
from evaluators.registry import build_evaluator
from evaluators.statistics.intervals import describe_bootstrap
from evaluators.types import Metric
from mulosd.types import COUNTERS, GENEVAL_TASKS
from pipelines.compare.compare import DETAIL, DPG, OVERALL, baseline_of, compare, forwards_of

NUM = 240
IDS = [f"scenes/p{i:03d}/0" for i in range(NUM)]
TASK_OF = {sample: GENEVAL_TASKS[i % len(GENEVAL_TASKS)] for i, sample in enumerate(IDS)}


def metric(values: dict[str, float]) -> dict[str, object]:
    mean = sum(values.values()) / len(values)
    declared = {"unit": "share of images", "protocol": {"interval": describe_bootstrap(proportion=True)}}
    return {"value": mean, "interval": None, "n": len(values), "n_missing": 0, "per_sample": values, **declared}


def row(
    key: str, method: str, *, right: float, detail: float = 0.5, forwards: int = 16, target: str = "t", **knobs: object
) -> CellRow:
    """A row whose first `right` share of each task is correct, so that better rows contain worse ones."""
    rank = {sample: i // len(GENEVAL_TASKS) / (NUM // len(GENEVAL_TASKS)) for i, sample in enumerate(IDS)}
    scores = {sample: float(rank[sample] < right) for sample in IDS}
    metrics = {"geneval/overall": metric(scores), "detail/accuracy": metric({s: float(rank[s] < detail) for s in IDS})}
    for task in GENEVAL_TASKS:
        metrics[f"geneval/{task}"] = metric({s: v for s, v in scores.items() if TASK_OF[s] == task})
    counters = {
        "forwards_draft": dict.fromkeys(IDS, 4.0),
        "forwards_verify": dict.fromkeys(IDS, float(forwards - 4)),
        "resampled": dict.fromkeys(IDS, 64.0),
        "drafted": dict.fromkeys(IDS, 0.0 if method in ("ar", "zipar") else 256.0),
    }
    return CellRow(key, target, method, knobs, 256, metrics, counters)


@pytest.fixture(scope="module")
def group() -> list[CellRow]:
    return [
        row("ar", "ar", right=0.8, detail=0.9, forwards=256),
        row("draft", "draft-only", right=0.5, detail=0.3, forwards=20),
        row("mulosd", "mulosd", right=0.78, detail=0.75, forwards=64, tau=0.2),
        row("bad", "mulosd", right=0.55, detail=0.35, forwards=80, tau=0.05),
    ]


@pytest.fixture(scope="module")
def found(group: list[CellRow]):
    return compare(group)


def test_forwards_count_all_kinds(group: list[CellRow]) -> None:
    assert set(forwards_of(group[2]).values()) == {64.0}


def test_forward_ratio_is_ar_over_the_method(found) -> None:
    assert found["mulosd"].estimates["forward_ratio"].value == pytest.approx(4.0)
    assert found["ar"].estimates["forward_ratio"].value == pytest.approx(1.0)


def test_difference_is_method_minus_ar_with_an_interval(found) -> None:
    gap = found["bad"].estimates["geneval_difference"]
    assert gap.value == pytest.approx(-0.25)
    assert gap.interval is not None
    assert gap.interval[0] < gap.value < gap.interval[1] < 0
    assert found["ar"].estimates["geneval_difference"].value is None


def test_detail_kept_is_the_share_of_ars_advantage(found) -> None:
    assert found["mulosd"].estimates["detail_kept"].value == pytest.approx((0.75 - 0.3) / (0.9 - 0.3), abs=0.01)
    assert found["draft"].estimates["detail_kept"].value == pytest.approx(0.0)


def test_resampled_is_a_share_of_the_target_tokens(found) -> None:
    assert found["mulosd"].estimates["resampled"].value == pytest.approx(0.25)
    assert found["ar"].estimates["resampled"].reason == "ar has no draft"


def test_latency_needs_a_bench_run(found) -> None:
    assert "bench" in found["mulosd"].estimates["latency_speedup"].reason


def test_best_needs_an_interval_that_excludes_zero(found) -> None:
    assert "detail" in found["ar"].best
    assert found["mulosd"].best == {"forwards"}  # draft-only needs fewer, but it decodes nothing of the target
    assert found["draft"].best == frozenset()


def test_indistinguishable_rows_are_not_marked() -> None:
    rows = [row("a", "ar", right=0.8), row("b", "zipar", right=0.8)]
    assert all("geneval" not in c.best for c in compare(rows).values())


def test_verdict_says_what_is_missing(found) -> None:
    (good,), (bad,) = found["mulosd"].notes, found["bad"].notes
    assert good == "Speed-up of mulosd tau=0.2: counts; half of ar's detail advantage is kept."
    assert "not shown to count (the lower limit of GenEval − ar" in bad
    assert "is not shown to be kept" in bad
    assert found["ar"].notes == ()


def test_the_metrics_are_named_as_the_evaluators_name_them() -> None:
    """A column that asks for another name would stay empty for ever."""
    made = {metric.name for name in ("geneval", "detail", "dpg") for metric in _nothing_scored(name)}
    assert {OVERALL, DETAIL, DPG, *(f"geneval/{task}" for task in GENEVAL_TASKS)} <= made
    # Those from features are checked where features are computed (tests/pipeline/test_scorers.py).
    # The chosen tau is checked below.
    names = {name for c in COLUMNS for name in (c.metric, c.needs) if name and "effnet" not in name}
    assert names - {"speed/chosen_tau"} <= made


def test_the_chosen_tau_has_a_column_where_one_was_chosen() -> None:
    """By the name that the speed evaluator gives it; rows with a fixed tau say why they have none."""
    counters = dict.fromkeys(COUNTERS, 1)
    evaluator = build_evaluator("speed")
    state = evaluator.score([{"sample_id": "s/0/0", "token_ids": [1], "chosen_taus": [0.2, 0.4], **counters}])
    (made,) = (m.to_json() for m in evaluator.finalize(state) if m.name == "speed/chosen_tau")
    fixed, chosen = row("fixed", "mulosd", right=0.8), row("chosen", "mulosd", right=0.8, resampled_fraction=0.3)
    chosen.metrics["speed/chosen_tau"] = made
    table = build_table([fixed, chosen], compare([fixed, chosen]))
    assert [c.title for c in table.columns][-1] == "tau chosen"
    shown = [one.cells["chosen_tau"] for one in table.rows]
    assert [cell.estimate.value for cell in shown] == [None, pytest.approx(0.3)]
    assert table.footnotes[shown[0].footnotes[0] - 1] == "tau chosen: only a requested resampled_fraction chooses one."
    assert "chosen_tau" not in [c.key for c in build_table([fixed], {}).columns]


def _nothing_scored(name: str) -> list[Metric]:
    evaluator = build_evaluator(name)
    return evaluator.finalize(evaluator.score([]))


def scored(key: str, method: str, name: str, values: list[float]) -> CellRow:
    """A row with one more metric, whose values repeat over the samples."""
    one = row(key, method, right=0.8)
    one.metrics[name] = metric({s: values[i % len(values)] for i, s in enumerate(IDS)})
    return one


@pytest.mark.parametrize(
    ("name", "key", "ours", "expected"),
    [
        (DPG, "dpg", [60.0, 100.0], True),
        (DPG, "dpg", [50.5, 79.5], False),  # the interval of the difference holds zero
        (DPG, "dpg", [60.0, 90.0], True),  # the same difference on every prompt: a share keeps a width
        ("precision_effnet", "precision_effnet", [51.0, 82.0], True),
        ("recall_effnet", "recall_effnet", [60.0, 100.0], False),  # each row judges by a manifold of its own
        ("kid_effnet_full", "kid_effnet_full", [10.0, 20.0], False),
    ],
)
def test_best_of_the_metrics_beside_geneval(name: str, key: str, ours: list[float], expected: bool) -> None:
    rows = [scored("a", "ar", name, [50.0, 80.0]), scored("m", "mulosd", name, ours)]
    compared = compare(rows)
    assert (key in compared["m"].best) == expected
    assert key not in compared["a"].best


def test_the_difference_in_dpg_is_in_points() -> None:
    rows = [scored("a", "ar", DPG, [50.0, 80.0]), scored("m", "mulosd", DPG, [40.0, 80.0])]
    gap = compare(rows)["m"].estimates["dpg_difference"]
    assert (gap.value, gap.n) == (pytest.approx(-5.0), NUM)
    assert gap.interval is not None
    assert -7 < gap.interval[0] < -5 < gap.interval[1] < -3


def test_verdicts_of_each_row(found) -> None:
    assert found["mulosd"].verdicts == {"beats_draft": "yes (detail)", "keeps_ar": "yes (margin 0.05)"}
    assert found["bad"].verdicts["keeps_ar"] == "no (margin 0.05)"
    assert found["ar"].verdicts == {"beats_draft": "yes (detail)"}
    assert found["draft"].verdicts == {"keeps_ar": "no (margin 0.05)"}


def test_a_verdict_without_certainty_is_not_shown() -> None:
    rows = [row("a", "ar", right=0.8), row("d", "draft-only", right=0.8), row("m", "mulosd", right=0.75)]
    verdicts = compare(rows)["m"].verdicts
    assert verdicts == {"beats_draft": "not shown (detail)", "keeps_ar": "not shown (margin 0.05)"}
    for one in rows:
        del one.metrics["detail/accuracy"]
    assert compare(rows)["m"].verdicts["beats_draft"] == "no (GenEval)"


def test_means_do_not_depend_on_the_order_of_samples() -> None:
    one = row("a", "ar", right=0.8)
    one.counters["resampled"] = {s: 0.1 * i for i, s in enumerate(IDS)}
    turned = row("a", "mulosd", right=0.8)
    turned.counters["resampled"] = dict(reversed(one.counters["resampled"].items()))
    straight = row("a", "mulosd", right=0.8)
    straight.counters["resampled"] = one.counters["resampled"]
    both = [compare([r])["a"].estimates["resampled"].value for r in (straight, turned)]
    assert both[0] == both[1]


def test_baseline_has_the_same_sampler(group: list[CellRow]) -> None:
    other = row("ar2", "ar", right=0.8, guidance=3.0)
    guided = row("m2", "mulosd", right=0.7, guidance=3.0, tau=0.2)
    assert baseline_of(guided, [*group, other]) is other
    assert baseline_of(group[2], [*group, other]) is group[0]
    assert baseline_of(guided, group) is None


def test_of_several_drafts_the_same_draft_is_the_control(group: list[CellRow]) -> None:
    repeat = row("draft2", "draft-only", right=0.5, upsampler="repeat")
    rows = [*group, repeat]
    assert baseline_of(row("m", "mulosd", right=0.7, upsampler="repeat"), rows, "draft-only") is repeat
    assert baseline_of(row("m", "mulosd", right=0.7, tau=0.3), rows, "draft-only") is group[1]
    assert baseline_of(row("m", "mulosd", right=0.7, upsampler="repeat"), group, "draft-only") is group[1]
    assert baseline_of(row("m", "mulosd", right=0.7, draft_window=9), rows, "draft-only") is None
    own = row("draft3", "draft-only", right=0.5, drafter="self")
    assert baseline_of(row("m", "mulosd", right=0.7, drafter="self"), [*rows, own], "draft-only") is own
    assert baseline_of(row("m", "mulosd", right=0.7), [*rows, own], "draft-only") is group[1]


def test_no_disagreement_on_few_prompts_shows_no_equality() -> None:
    """The bootstrap's interval would be [0, 0] and pass for certain."""
    few = set(IDS[: 6 * 2])

    def cut(one: CellRow) -> CellRow:
        metrics = {
            name: {**m, "per_sample": {s: 1.0 for s in m["per_sample"] if s in few}} for name, m in one.metrics.items()
        }
        return replace(one, metrics=metrics)

    rows = [row("a", "ar", right=0.8), row("m", "zipar", right=0.8)]
    assert compare([cut(one) for one in rows])["m"].verdicts["keeps_ar"] == "not shown (margin 0.05)"
    every = [row("a", "ar", right=1.1), row("m", "zipar", right=1.1)]
    assert compare(every)["m"].verdicts["keeps_ar"] == "yes (margin 0.05)"


def test_without_a_baseline_numbers_are_null_with_a_reason() -> None:
    alone = compare([row("m", "mulosd", right=0.7)])["m"].estimates
    for key in ("forward_ratio", "geneval_difference", "detail_kept"):
        assert alone[key].value is None
        assert "no ar row" in alone[key].reason


def test_targets_are_not_mixed() -> None:
    rows = [row("a", "ar", right=0.8, forwards=256), row("b", "mulosd", right=0.7, forwards=64, target="other")]
    assert compare(rows)["b"].estimates["forward_ratio"].value is None
