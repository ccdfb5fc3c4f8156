"""A wide table in LaTeX fits the text of a page, by the widths of Computer Modern's own letters."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib import get_data_path
from matplotlib.ft2font import FT2Font

from dashboards.latex import TEXT_PT, to_latex
from dashboards.table import COLUMNS, VERDICTS, Cell, Estimate, Table, TableRow

LABELS = ("ar", "draft-only", "zipar window=8", "mulosd radius=2 rejection=local sr_model=4xNomos_WebPhoto tau=0.2")
FONT = FT2Font(str(Path(get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"))
FOOTNOTESIZE = 8 * 1.063  # the small sizes of Computer Modern are wider than the same letters scaled down
SCRIPTSIZE = 7 * 1.138


def wide_table() -> Table:
    """Every column that a table can have, with intervals, marks and verdicts."""

    def row(number: int, label: str) -> TableRow:
        cells = {}
        for column in COLUMNS:
            value = -0.123 if column.signed else 0.9876 if column.unit == "%" else 100.0 / 3
            cells[column.key] = Cell(Estimate(value, (value - 0.1, value + 0.1), 900), number == 3, (1, 2))
        words = {"beats_draft": "not shown (GenEval)", "keeps_ar": "not shown (margin 0.05)"}
        return TableRow(label, "tiny-high", "scenes", 900, cells, number < 2, words)

    rows = tuple(row(number, label) for number, label in enumerate(LABELS))
    return Table("a title", COLUMNS, rows, ("one reason.", "another."), ("A note with 100% & more_.",), VERDICTS)


def points(entry: str) -> float:
    """Width of one line of an entry."""
    size = SCRIPTSIZE if r"\scriptsize" in entry else FOOTNOTESIZE
    text = re.sub(r"\\textsuperscript\{([^}]*)\}", r"\1", entry)
    text = re.sub(r"\$\\(times|uparrow|downarrow|le|ge)\$|\$-\$", "+", text)
    text = re.sub(r"\\textbf|\\scriptsize|\\textbackslash|[{}\\]", "", text).replace("--", "-").strip()
    bold = 1.15 if r"\textbf" in entry else 1.0
    FONT.set_size(size, 72)
    FONT.set_text(text)
    return bold * FONT.get_width_height()[0] / 64


def tabulars(text: str) -> Iterator[list[list[str]]]:
    """The entries of each tabular, line by line."""
    for part in text.split(r"\begin{tabular}")[1:]:
        lines = part.partition(r"\end{tabular}")[0].splitlines()
        yield [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r"\\")]


def test_every_tabular_fits_and_no_column_is_lost() -> None:
    text = to_latex(wide_table())
    heads = []
    for lines in tabulars(text):
        widths = [6.0 + max(map(points, column)) for column in zip(*lines, strict=True)]
        assert sum(widths) <= TEXT_PT
        assert lines[0][:2] == ["method", "n"]
        heads += lines[0][2:]
    assert len(heads) == len(COLUMNS) + len(VERDICTS)
    assert r"A note with 100\% \& more\_." in text


def test_an_interval_stands_below_its_number() -> None:
    lines = next(tabulars(to_latex(wide_table())))
    at = next(i for i, line in enumerate(lines) if line[0] == "ar")
    assert lines[at][2] == r"33.3\textsuperscript{1,2}"
    assert lines[at + 1][0] == ""
    assert lines[at + 1][2] == r"{\scriptsize [33.2, 33.4]}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_it_compiles_without_an_overfull_line(tmp_path: Path) -> None:
    body = to_latex(wide_table())
    text = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n" + body + "\\end{document}\n"
    (tmp_path / "table.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout
