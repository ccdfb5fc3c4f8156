"""Writers of one `dashboards.table.Table`: Markdown, CSV (full precision, for programs) and LaTeX (booktabs)."""

import csv
import io
from collections.abc import Callable

from dashboards.entries import head_n, lead_titles, lead_values, value_and_interval, verdict_values
from dashboards.latex import to_latex
from dashboards.markdown import escape, markdown_table
from dashboards.table import Cell, Column, Table
from mulosd.errors import unknown_name

ARROWS = {"higher": "↑", "lower": "↓", "none": ""}


def render(table: Table, form: str) -> str:
    """The table as text in `form` (md, csv or tex), ending in a newline."""
    if form not in WRITERS:
        raise unknown_name("table format", form, WRITERS)
    return WRITERS[form](table)


def to_markdown(table: Table) -> str:
    """GitHub Markdown: title, table, notes, numbered footnotes."""
    heads = [*lead_titles(table), *(_markdown_head(column, table) for column in table.columns)]
    heads += [verdict.title for verdict in table.verdicts]
    rows = []
    for row in table.rows:
        entries = [_markdown_entry(row.cells[column.key], column) for column in table.columns]
        rows.append([*lead_values(table, row), *entries, *verdict_values(table, row)])
    notes = [f"- {escape(note)}" for note in table.notes]
    footnotes = [
        f"<sup>{i}</sup> {escape(text)}  " for i, text in enumerate(table.footnotes, 1)
    ]  # blanks: a line break
    blocks = [f"**{table.title}**" if table.title else "", markdown_table(heads, rows, align=_alignment(table))]
    return "\n\n".join(block for block in (*blocks, "\n".join(notes), "\n".join(footnotes)) if block) + "\n"


def to_csv(table: Table) -> str:
    """One line per row; each column has value, `_lo`, `_hi` and `_n`; missing values are empty, `notes` says why."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = ["target", "prompts", "method", "n"]
    for column in table.columns:
        head += [column.key, f"{column.key}_lo", f"{column.key}_hi", f"{column.key}_n"]
    writer.writerow([*head, *(verdict.key for verdict in table.verdicts), "best", "notes"])
    for row in table.rows:
        values: list[str | int] = [row.target, row.prompts, row.label, row.n]
        for column in table.columns:
            estimate = row.cells[column.key].estimate
            lo, hi = estimate.interval or (None, None)
            values += [_exact(estimate.value), _exact(lo), _exact(hi), estimate.n or ""]
        best = " ".join(key for key, cell in row.cells.items() if cell.is_best)
        numbers = sorted({number for cell in row.cells.values() for number in cell.footnotes})
        values += [row.verdicts.get(verdict.key, "") for verdict in table.verdicts]
        writer.writerow([*values, best, " ".join(table.footnotes[number - 1] for number in numbers)])
    return out.getvalue()


WRITERS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def _alignment(table: Table) -> str:
    """A letter a column, l or r: n and the numbers to the right."""
    return "l" * (len(lead_titles(table)) - 1) + "r" * (len(table.columns) + 1) + "l" * len(table.verdicts)


def _markdown_head(column: Column, table: Table) -> str:
    return f"{column.title} {ARROWS[column.direction]}".rstrip() + head_n(column, table)


def _markdown_entry(cell: Cell, column: Column) -> str:
    value, interval = value_and_interval(cell, column)
    value = f"**{value}**" if cell.is_best else value
    marks = f"<sup>{','.join(map(str, cell.footnotes))}</sup>" if cell.footnotes else ""
    return f"{value}{marks} {interval}".rstrip()


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))
