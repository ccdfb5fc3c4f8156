"""The results table of a sweep: one object, rendered as Markdown, CSV or LaTeX by `dashboards.render`.

In: rows of finished cells and, per cell, the comparisons that `pipelines.compare.compare` worked out. This module
arranges plain numbers: it knows no statistics and no store. A number that could not be worked out stays
None with its reason, which becomes a footnote; it is never 0 and never dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.rows import CellRow
from mulosd.types import Direction, Estimate, Interval

CONTROLS = ("ar", "draft-only")  # first in every table, in this order


@dataclass(frozen=True)
class Comparison:
    """What one cell is against the others of its group (same target and prompts), as plain values.

    estimates: column key -> Estimate. best: keys of the columns where this cell beats every other one and the
    interval of each paired difference excludes zero. verdicts: key of a `Verdict` -> what is shown, in a word or two.
    notes: sentences for the foot of the table.
    """

    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    verdicts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """key: name in CSV and in `Comparison.estimates`; metric: name of the Metric it shows, if it shows one.

    needs: name of a Metric without which in any row the column is left out.
    """

    key: str
    title: str
    direction: Direction
    unit: str
    digits: int
    metric: str = ""
    signed: bool = False
    needs: str = ""


COLUMNS = (
    Column("forwards", "forwards / image", "lower", "", 1),
    Column("forward_ratio", "fewer forwards", "higher", "×", 2),
    Column("latency_speedup", "latency speed-up", "higher", "×", 2),
    Column("geneval", "GenEval", "higher", "", 3, "geneval/overall"),
    Column("geneval_difference", "GenEval − ar", "higher", "", 3, signed=True),
    Column("detail", "detail", "higher", "", 3, "detail/accuracy"),
    Column("detail_kept", "detail kept", "higher", "%", 0),
    Column("dpg", "DPG", "higher", "", 1, "dpg/overall", needs="dpg/overall"),
    Column("dpg_difference", "DPG − ar", "higher", "", 1, signed=True, needs="dpg/overall"),
    Column("fd_effnet", "FD-EffNet", "lower", "", 1, "fd_effnet"),
    Column("kid_effnet_full", "KID-EffNet", "lower", "", 4, "kid_effnet_full", needs="kid_effnet_full"),
    Column("precision_effnet", "precision", "higher", "", 3, "precision_effnet", needs="precision_effnet"),
    Column("recall_effnet", "recall", "higher", "", 3, "recall_effnet", needs="recall_effnet"),
    Column("resampled", "resampled", "none", "%", 1),
    Column("chosen_tau", "tau chosen", "none", "", 4, needs="speed/chosen_tau"),
)


@dataclass(frozen=True)
class Verdict:
    """A column of words; shown where any row has one."""

    key: str
    title: str


VERDICTS = (
    Verdict("beats_draft", "better than draft-only"),
    Verdict("keeps_ar", "non-inferior to ar"),
)


@dataclass(frozen=True)
class Cell:
    """One entry: the estimate, whether it is marked best, and the numbers (from 1) of its footnotes."""

    estimate: Estimate
    is_best: bool = False
    footnotes: tuple[int, ...] = ()


@dataclass(frozen=True)
class TableRow:
    label: str
    target: str
    prompts: str
    n: int
    cells: Mapping[str, Cell]
    is_control: bool
    verdicts: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """title, columns that any row needs, the verdicts that any row has, rows and footnotes (numbered from 1)."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = ()

    def column_n(self, key: str) -> str:
        """Items behind a column: one number, or the range over the rows; "" when nothing was counted."""
        counts = sorted({row.cells[key].estimate.n for row in self.rows if row.cells[key].estimate.n})
        if not counts:
            return ""
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


class _Footnotes:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text) + 1


def build_table(
    rows: Sequence[CellRow], comparisons: Mapping[str, Comparison], *, title: str = "", notes: Sequence[str] = ()
) -> Table:
    """The table of `rows`, control rows first in each group of target and prompts."""
    footnotes = _Footnotes()
    columns = tuple(c for c in COLUMNS if not c.needs or any(c.needs in row.metrics for row in rows))
    done = [_table_row(row, columns, comparisons.get(row.cell_key, Comparison()), footnotes) for row in ordered(rows)]
    said = dict.fromkeys(note for row in ordered(rows) for note in _notes_of(comparisons, row))
    marks = "Bold: better than every other row by a paired 95 % interval that excludes zero." if _has_best(done) else ""
    return Table(
        title=title,
        columns=columns,
        rows=tuple(done),
        footnotes=tuple(footnotes.texts),
        notes=tuple(note for note in (*notes, *said, marks) if note),
        verdicts=tuple(verdict for verdict in VERDICTS if any(row.verdicts.get(verdict.key) for row in done)),
    )


def ordered(rows: Sequence[CellRow]) -> list[CellRow]:
    """Rows grouped by target and prompts; in a group ar, draft-only, then the order of the sweep."""
    groups = list(dict.fromkeys((row.target, prompts_of(row)) for row in rows))

    def rank(row: CellRow) -> tuple[int, int]:
        control = CONTROLS.index(row.method) if row.method in CONTROLS else len(CONTROLS)
        return groups.index((row.target, prompts_of(row))), control

    return sorted(rows, key=rank)


def prompts_of(row: CellRow) -> str:
    """Benchmarks of a row's samples, read from the sample ids: `scenes`, or `coco+geneval`.

    A cell whose images all failed has no counters; its metrics name the samples that they miss.
    """
    missed = (sample for metric in row.metrics.values() for sample in metric.get("missing", ()))
    return "+".join(sorted({sample.split("/")[0] for sample in _samples(row) or missed}))


def _samples(row: CellRow) -> Mapping[str, Any]:
    return max(row.counters.values(), key=len, default={})


def _notes_of(comparisons: Mapping[str, Comparison], row: CellRow) -> tuple[str, ...]:
    return comparisons[row.cell_key].notes if row.cell_key in comparisons else ()


def _has_best(rows: Sequence[TableRow]) -> bool:
    return any(cell.is_best for row in rows for cell in row.cells.values())


def _table_row(row: CellRow, columns: Sequence[Column], comparison: Comparison, footnotes: _Footnotes) -> TableRow:
    cells = {}
    for column in columns:
        if column.metric:
            cells[column.key] = _metric_cell(row, column, comparison, footnotes)
        else:
            estimate = comparison.estimates.get(column.key, Estimate(None, reason="not compared"))
            cells[column.key] = _cell(estimate, column, comparison, footnotes)
    return TableRow(
        label=row.label,
        target=row.target,
        prompts=prompts_of(row),
        n=len(_samples(row)),
        cells=cells,
        is_control=row.method in CONTROLS,
        verdicts=comparison.verdicts,
        knobs=row.knobs,
    )


def _metric_cell(row: CellRow, column: Column, comparison: Comparison, footnotes: _Footnotes) -> Cell:
    metric = row.metrics.get(column.metric)
    if metric is None:
        return _cell(Estimate(None, reason="not evaluated in this sweep"), column, comparison, footnotes)
    interval = metric.get("interval")
    estimate = Estimate(
        value=metric.get("value"),
        interval=Interval(*interval) if interval else None,
        n=metric.get("n", 0),
        reason=metric.get("reason", ""),
    )
    missing = metric.get("n_missing", 0)
    lost = f"{missing} of {missing + estimate.n} items of {row.label} have no {column.title} score." if missing else ""
    return _cell(estimate, column, comparison, footnotes, lost)


def _cell(estimate: Estimate, column: Column, comparison: Comparison, footnotes: _Footnotes, note: str = "") -> Cell:
    numbers = []
    if estimate.value is None:
        reason = (estimate.reason or "no value and no reason given").rstrip(".")
        numbers.append(footnotes.number(f"{column.title}: {reason}."))
    if note:
        numbers.append(footnotes.number(note))
    is_best = estimate.value is not None and column.key in comparison.best
    return Cell(estimate, is_best=is_best, footnotes=tuple(numbers))
