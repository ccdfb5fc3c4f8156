"""The table object and its three writers say the same, missing numbers included."""

import csv
import io
import re

import pytest

from dashboards.entries import format_value
from dashboards.render import render
from dashboards.rows import CellRow
from dashboards.table import COLUMNS, Comparison, Table, build_table
from mulosd.errors import ConfigError
from mulosd.types import Estimate

IDS = [f"scenes/{i}/0" for i in range(4)]


def row(key: str, method: str, *, target: str = "tiny-mid", geneval: float | None = 0.5, **knobs: object) -> CellRow:
    metrics = {"geneval/overall": {"value": geneval, "interval": [0.4, 0.6], "n": 4, "n_missing": 0, "reason": "why"}}
    return CellRow(key, target, method, knobs, 256, metrics, {"forwards_verify": dict.fromkeys(IDS, 10.0)})


def table_of(*rows: CellRow, **comparisons: Comparison) -> Table:
    return build_table(rows, comparisons, title="a title")


def column(key: str):
    return next(c for c in COLUMNS if c.key == key)


def test_controls_come_first_and_the_rest_keeps_its_order() -> None:
    table = table_of(row("a", "zipar"), row("b", "mulosd"), row("c", "draft-only"), row("d", "ar"))
    assert [r.label for r in table.rows] == ["ar", "draft-only", "zipar", "mulosd"]
    assert [r.is_control for r in table.rows] == [True, True, False, False]


def test_groups_of_targets_stay_together() -> None:
    table = table_of(row("a", "mulosd"), row("b", "mulosd", target="x"), row("c", "ar"), row("d", "ar", target="x"))
    assert [(r.target, r.label) for r in table.rows] == [
        ("tiny-mid", "ar"), ("tiny-mid", "mulosd"), ("x", "ar"), ("x", "mulosd")
    ]  # fmt: skip
    assert "| target | method | n |" in render(table, "md")


def test_a_cell_whose_images_all_failed_stays_in_its_group() -> None:
    failed = row("b", "mulosd", geneval=None)
    failed.counters["forwards_verify"].clear()
    failed.metrics["geneval/overall"]["missing"] = dict.fromkeys(IDS, "it failed")
    table = table_of(row("a", "ar"), failed, row("c", "zipar"))
    assert {r.prompts for r in table.rows} == {"scenes"}
    assert "| prompts |" not in render(table, "md")


def test_missing_value_is_a_dash_with_its_reason() -> None:
    table = table_of(row("a", "ar", geneval=None))
    cell = table.rows[0].cells["geneval"]
    assert cell.estimate.value is None
    assert "GenEval: why." in table.footnotes[cell.footnotes[0] - 1]
    text = render(table, "md")
    assert f"–<sup>{cell.footnotes[0]}</sup>" in text
    assert "0.000" not in text


def test_equal_reasons_share_a_footnote() -> None:
    table = table_of(row("a", "ar", geneval=None), row("b", "mulosd", geneval=None))
    assert len([t for t in table.footnotes if t.startswith("GenEval:")]) == 1


def test_lost_items_are_said() -> None:
    one = row("a", "ar")
    one.metrics["geneval/overall"]["n_missing"] = 2
    assert "2 of 6 items of ar have no GenEval score." in table_of(one).footnotes


def test_best_is_marked_in_every_form_and_only_there() -> None:
    best = Comparison({"forwards": Estimate(10.0, n=4)}, best=frozenset({"forwards"}))
    table = table_of(row("a", "ar"), row("b", "mulosd"), a=Comparison({"forwards": Estimate(16.0, n=4)}), b=best)
    assert "**10.0**" in render(table, "md")
    assert "**16.0**" not in render(table, "md")
    assert r"\textbf{10.0}" in render(table, "tex")
    assert [line["best"] for line in csv.DictReader(io.StringIO(render(table, "csv")))] == ["", "forwards"]


def test_verdicts_stand_in_every_form_and_only_when_there_are_any() -> None:
    rows = row("a", "ar"), row("b", "mulosd")
    table = table_of(*rows, b=Comparison(verdicts={"keeps_ar": "yes (margin 0.05)"}))
    assert [verdict.key for verdict in table.verdicts] == ["keeps_ar"]
    lines = render(table, "md").splitlines()
    assert lines[2].endswith("| non-inferior to ar |")
    assert lines[4].endswith("| – |")
    assert lines[5].endswith("| yes (margin 0.05) |")
    tex = render(table, "tex")
    assert "& non-inferior" in tex
    assert "& yes (margin" in tex
    assert [r["keeps_ar"] for r in csv.DictReader(io.StringIO(render(table, "csv")))] == ["", "yes (margin 0.05)"]
    assert "non-inferior" not in render(table_of(*rows), "md")


def test_latex_says_n_where_it_differs() -> None:
    one = row("a", "ar")
    one.metrics["geneval/overall"]["n"] = 3
    text = render(table_of(one), "tex")
    assert r"& GenEval $\uparrow$ &" in text
    assert "& (n=3) &" in text


def test_csv_keeps_full_precision_and_empty_for_missing() -> None:
    value = 0.1 + 0.2
    table = table_of(row("a", "ar"), a=Comparison({"forward_ratio": Estimate(value, (1 / 3, 2.0), 4)}))
    line = next(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert float(line["forward_ratio"]) == value
    assert float(line["forward_ratio_lo"]) == 1 / 3
    assert line["latency_speedup"] == ""


def test_every_markdown_line_has_as_many_columns() -> None:
    text = render(table_of(row("a", "ar"), row("b", "mulosd", tau=0.2)), "md")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert len(lines) == 4


def test_latex_has_as_many_entries_as_columns_and_no_raw_unicode() -> None:
    text = render(table_of(row("a", "ar"), row("b", "mulosd", tau=0.2)), "tex")
    for tabular in text.split(r"\begin{tabular}")[1:]:
        align, _, body = tabular.partition("\n")
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {line.count("&") for line in lines} == {len(align.strip("{}")) - 1}
    assert "×" not in text
    assert "−" not in text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("forward_ratio", 2.966, "2.97×"),
        ("geneval_difference", -0.0123, "−0.012"),
        ("geneval_difference", 0.0123, "+0.012"),
        ("geneval_difference", -0.0001, "0.000"),
        ("resampled", 0.2345, "23.4%"),
        ("forwards", 86.0, "86.0"),
    ],
)
def test_format_value(key: str, value: float, text: str) -> None:
    assert format_value(value, column(key)) == text


def test_column_n_shows_a_range() -> None:
    one, two = row("a", "ar"), row("b", "mulosd")
    two.metrics["geneval/overall"]["n"] = 3
    assert table_of(one, two).column_n("geneval") == "3–4"
    assert "GenEval ↑ (n=3–4)" in render(table_of(one, two), "md")


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="csv, md, tex"):
        render(table_of(row("a", "ar")), "xml")


def test_columns_of_metrics_that_no_row_has_are_left_out() -> None:
    bare, scored = row("a", "ar"), row("b", "mulosd")
    assert not {"dpg", "dpg_difference", "kid_effnet_full"} & {c.key for c in table_of(bare).columns}
    scored.metrics["dpg/overall"] = {"value": 62.25, "interval": [58.04, 66.0], "n": 4}
    scored.metrics["kid_effnet_full"] = {"value": 0.00123, "interval": [-0.0001, 0.0025], "n": 3}
    table = table_of(bare, scored, b=Comparison({"dpg_difference": Estimate(-1.5, (-3.0, 0.0), 4)}, frozenset({"dpg"})))
    assert {"dpg", "dpg_difference", "kid_effnet_full"} <= set(table.rows[0].cells) == {c.key for c in table.columns}
    assert "DPG: not evaluated in this sweep." in table.footnotes
    text = render(table, "md")
    assert "| DPG ↑ | DPG − ar ↑ |" in text
    assert "KID-EffNet ↓ (n=3)" in text
    assert "| **62.2** [58.0, 66.0] | −1.5 [−3.0, 0.0] |" in text
    assert "0.0012 [−0.0001, 0.0025]" in text
    assert r"\textbf{62.2}" in render(table, "tex")
    (_, last) = csv.DictReader(io.StringIO(render(table, "csv")))
    assert (last["dpg"], last["dpg_lo"], last["dpg_n"], last["best"]) == ("62.25", "58.04", "4", "dpg")
    assert (last["kid_effnet_full"], last["kid_effnet_full_hi"]) == ("0.00123", "0.0025")
