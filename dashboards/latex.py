"""A table in LaTeX that fits the text of a page: booktabs tabulars below one another, each of at most `TEXT_PT`.

An interval stands below its number, long words of heads and methods are wrapped, and columns that do not fit go to the
next tabular, which names the methods again. Widths are estimated from the length of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from dashboards.entries import head_n, lead_titles, lead_values, value_and_interval, verdict_values
from dashboards.numbers import DASH, MINUS
from dashboards.table import Cell, Column, Table

TEXT_PT = 345.0  # text width of LaTeX's article in 10 pt, the narrowest of the common classes
CHAR_PT = 4.4  # a character of \footnotesize; digits of Computer Modern take 4.25
SMALL_CHAR_PT = 4.1  # of \scriptsize
GAP_PT = 6.0  # twice \tabcolsep
HEAD_CHARS = 12
LABEL_CHARS = 24
_ARROWS = {"higher": " ↑", "lower": " ↓", "none": ""}


@dataclass(frozen=True)
class _Line:
    """One line of an entry and its width in points."""

    tex: str
    width: float


@dataclass(frozen=True)
class _Column:
    """align: l or r. head: its lines. entries: the lines of each row."""

    align: str
    head: tuple[_Line, ...]
    entries: tuple[tuple[_Line, ...], ...]

    @property
    def width(self) -> float:
        """The widest line with the space around it."""
        return GAP_PT + max(line.width for lines in (self.head, *self.entries) for line in lines)


def to_latex(table: Table) -> str:
    """Tabulars of at most the width of an article's text, then notes and numbered footnotes; needs booktabs only."""
    leads, others = _leads(table), [*_numbers(table), *_verdicts(table)]
    breaks = [
        index
        for index, (before, row) in enumerate(zip(table.rows, table.rows[1:], strict=False), 1)
        if before.is_control and not row.is_control
    ]
    lines = [f"% {' '.join(table.title.split()) or 'mulosd results'}", "% needs \\usepackage{booktabs}"]
    lines += [r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}"]
    for number, part in enumerate(_parts(leads, others)):
        lines += [r"\par\medskip"] if number else []
        lines += _tabular([*leads, *part], len(table.rows), breaks)
    tail = [*table.notes, *(f"({i}) {text}" for i, text in enumerate(table.footnotes, 1))]
    lines += [rf"\par\noindent {_escape(text)}" for text in tail]
    return "\n".join([*lines, r"\par\endgroup"]) + "\n"


def _parts(leads: Sequence[_Column], others: Sequence[_Column]) -> Iterator[list[_Column]]:
    """Columns side by side as far as they fit beside the leads, in their order; at least one at a time."""
    room = TEXT_PT - sum(column.width for column in leads)
    part: list[_Column] = []
    for column in others:
        if part and sum(one.width for one in (*part, column)) > room:
            yield part
            part = []
        part.append(column)
    yield part


def _tabular(columns: Sequence[_Column], num_rows: int, breaks: Sequence[int]) -> Iterator[str]:
    align = "".join(column.align for column in columns)
    yield rf"\noindent\begin{{tabular}}{{{align}}}"
    yield r"\toprule"
    yield from _lines([column.head for column in columns])
    for index in range(num_rows):
        if index in (0, *breaks):
            yield r"\midrule"
        yield from _lines([column.entries[index] for column in columns])
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _lines(entries: Sequence[Sequence[_Line]]) -> Iterator[str]:
    for lines in zip_longest(*entries):
        yield " & ".join(line.tex if line else "" for line in lines) + r" \\"


def _leads(table: Table) -> list[_Column]:
    values = [lead_values(table, row) for row in table.rows]
    titles = lead_titles(table)
    return [
        _Column(
            "r" if title == "n" else "l", _plain(title, HEAD_CHARS), tuple(_plain(v[i], LABEL_CHARS) for v in values)
        )
        for i, title in enumerate(titles)
    ]


def _numbers(table: Table) -> Iterator[_Column]:
    for column in table.columns:
        head = f"{column.title}{_ARROWS[column.direction]}{head_n(column, table)}"
        yield _Column(
            "r", _plain(head, HEAD_CHARS), tuple(_number(row.cells[column.key], column) for row in table.rows)
        )


def _verdicts(table: Table) -> Iterator[_Column]:
    words = [verdict_values(table, row) for row in table.rows]
    for i, verdict in enumerate(table.verdicts):
        yield _Column("l", _plain(verdict.title, HEAD_CHARS), tuple(_plain(word[i], HEAD_CHARS) for word in words))


def _plain(text: str, chars: int) -> tuple[_Line, ...]:
    lines = wrap(text, chars, break_on_hyphens=False) or [""]
    return tuple(_Line(_escape(line), CHAR_PT * len(line)) for line in lines)


def _number(cell: Cell, column: Column) -> tuple[_Line, ...]:
    """The number, and its interval below it."""
    value, interval = value_and_interval(cell, column)
    marks = ",".join(map(str, cell.footnotes))
    tex = rf"\textbf{{{_escape(value)}}}" if cell.is_best else _escape(value)
    tex += rf"\textsuperscript{{{marks}}}" if marks else ""
    first = _Line(tex, CHAR_PT * (len(value) * (1.15 if cell.is_best else 1.0) + len(marks)))
    if not interval:
        return (first,)
    return first, _Line(rf"{{\scriptsize {_escape(interval)}}}", SMALL_CHAR_PT * len(interval))


def _escape(text: str) -> str:
    for plain, tex in _LATEX:
        text = text.replace(plain, tex)
    return text


_LATEX = (
    ("\\", "\0"),
    *((char, "\\" + char) for char in "&%$#_{}"),
    ("\0", r"\textbackslash{}"),
    ("≤", r"$\le$"),
    ("≥", r"$\ge$"),
    ("×", r"$\times$"),
    ("↑", r"$\uparrow$"),
    ("↓", r"$\downarrow$"),
    (MINUS, "$-$"),
    (DASH, "--"),
    ("~", r"\textasciitilde{}"),
    ("^", r"\textasciicircum{}"),
)
