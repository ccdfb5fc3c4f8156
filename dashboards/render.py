"""Writers of one `dashboards.table.Table`: Markdown, CSV (full precision, for programs) and LaTeX (booktabs)."""

import csv
import io
from collections.abc import Callable

from dashboards.markdown import escape, markdown_table
from dashboards.numbers import DASH, MINUS, fixed
from dashboards.table import Cell, Column, Table, TableRow
from mulosd.errors import unknown_name

ARROWS = {"higher": "↑", "lower": "↓", "none": ""}


def render(table: Table, form: str) -> str:
    """The table as text in `form` (md, csv or tex), ending in a newline."""
    if form not in WRITERS:
        raise unknown_name("table format", form, WRITERS)
    return WRITERS[form](table)


def to_markdown(table: Table) -> str:
    """GitHub Markdown: title, table, notes, numbered footnotes."""
    heads = [*_lead_titles(table), *(_markdown_head(column, table) for column in table.columns)]
    heads += [verdict.title for verdict in table.verdicts]
    rows = []
    for row in table.rows:
        entries = [_markdown_entry(row.cells[column.key], column) for column in table.columns]
        rows.append([*_lead_values(table, row), *entries, *_verdict_values(table, row)])
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


def to_latex(table: Table) -> str:
    """A booktabs tabular with its notes and numbered footnotes below; needs no other package."""
    leads = _lead_titles(table)
    heads = [*map(_escape_latex, leads), *(_latex_head(column, table) for column in table.columns)]
    heads += [_escape_latex(verdict.title) for verdict in table.verdicts]
    lines = [f"% {table.title}" if table.title else "% mulosd results"]
    lines += [rf"\begin{{tabular}}{{{_alignment(table)}}}", r"\toprule"]
    lines += [" & ".join(heads) + r" \\", r"\midrule"]
    for previous, row in zip((None, *table.rows), table.rows, strict=False):
        if previous is not None and previous.is_control and not row.is_control:
            lines.append(r"\midrule")
        entries = [_latex_entry(row.cells[column.key], column) for column in table.columns]
        words = map(_escape_latex, _verdict_values(table, row))
        lines.append(" & ".join([*map(_escape_latex, _lead_values(table, row)), *entries, *words]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    tail = [*table.notes, *(f"({i}) {text}" for i, text in enumerate(table.footnotes, 1))]
    lines += [rf"\\ \footnotesize {_escape_latex(text)}" for text in tail]
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def format_value(value: float, column: Column) -> str:
    """`0.613`, `2.97×`, `41.2%`, `−0.012`: digits and unit of the column, a true minus sign."""
    scaled = 100 * value if column.unit == "%" else value
    return fixed(scaled, column.digits, signed=column.signed) + column.unit


def format_interval(low: float, high: float, column: Column) -> str:
    """`[2.51, 3.40]`, without the unit."""
    low_text, high_text = (format_value(limit, column).removesuffix(column.unit or "\0") for limit in (low, high))
    return f"[{low_text}, {high_text}]"


def _text(cell: Cell, column: Column) -> tuple[str, str]:
    """Value and interval as text; the interval is "" when there is none."""
    estimate = cell.estimate
    if estimate.value is None:
        return DASH, ""
    interval = format_interval(*estimate.interval, column) if estimate.interval else ""
    return format_value(estimate.value, column), interval


def _lead_titles(table: Table) -> list[str]:
    titles = []
    if len({row.target for row in table.rows}) > 1:
        titles.append("target")
    if len({row.prompts for row in table.rows}) > 1:
        titles.append("prompts")
    return [*titles, "method", "n"]


def _lead_values(table: Table, row: TableRow) -> list[str]:
    every = {"target": row.target, "prompts": row.prompts, "method": row.label, "n": str(row.n)}
    return [every[title] for title in _lead_titles(table)]


def _alignment(table: Table) -> str:
    """A letter a column, l or r: n and the numbers to the right."""
    return "l" * (len(_lead_titles(table)) - 1) + "r" * (len(table.columns) + 1) + "l" * len(table.verdicts)


def _verdict_values(table: Table, row: TableRow) -> list[str]:
    return [row.verdicts.get(verdict.key, "") or DASH for verdict in table.verdicts]


def _head_n(column: Column, table: Table) -> str:
    """` (n=40)` where a column rests on another number of items than the rows say."""
    count = table.column_n(column.key)
    every = {str(row.n) for row in table.rows}
    return f" (n={count})" if count and {count} != every else ""


def _markdown_head(column: Column, table: Table) -> str:
    return f"{column.title} {ARROWS[column.direction]}".rstrip() + _head_n(column, table)


def _markdown_entry(cell: Cell, column: Column) -> str:
    value, interval = _text(cell, column)
    value = f"**{value}**" if cell.is_best else value
    marks = f"<sup>{','.join(map(str, cell.footnotes))}</sup>" if cell.footnotes else ""
    return f"{value}{marks} {interval}".rstrip()


def _latex_head(column: Column, table: Table) -> str:
    arrow = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "none": ""}[column.direction]
    return _escape_latex(column.title) + arrow + _escape_latex(_head_n(column, table))


def _latex_entry(cell: Cell, column: Column) -> str:
    value, interval = (_escape_latex(text) for text in _text(cell, column))
    value = rf"\textbf{{{value}}}" if cell.is_best else value
    marks = rf"\textsuperscript{{{','.join(map(str, cell.footnotes))}}}" if cell.footnotes else ""
    small = rf" {{\scriptsize {interval}}}" if interval else ""
    return f"{value}{marks}{small}"


def _escape_latex(text: str) -> str:
    for plain, tex in _LATEX:
        text = text.replace(plain, tex)
    return text


_LATEX = (
    ("\\", r"\textbackslash "),
    *((char, "\\" + char) for char in "&%$#_{}"),
    ("≤", r"$\le$"),
    ("≥", r"$\ge$"),
    ("×", r"$\times$"),
    (MINUS, "$-$"),
    (DASH, "--"),
    ("~", r"\textasciitilde "),
    ("^", r"\textasciicircum "),
)


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))
