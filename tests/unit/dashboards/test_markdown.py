"""The one writer of tables: what a reader of Markdown and of a terminal gets, byte for byte."""

import numpy as np
import pytest

from bench.gpu_report import COLUMNS, markdown
from dashboards.markdown import aligned_table, markdown_table
from dashboards.numbers import fixed
from dashboards.pair import pair_markdown
from dashboards.regions import CellRegions, regions_markdown
from dashboards.render import render
from dashboards.table import Comparison
from mulosd.types import Estimate
from tests.unit.dashboards.test_pair import PAIR
from tests.unit.dashboards.test_table import row, table_of


def test_alignment_is_a_letter_a_column() -> None:
    assert markdown_table(("a", "b"), [("1", "2")], align="lr") == "| a | b |\n| :-- | --: |\n| 1 | 2 |"
    assert markdown_table(("a", "b"), []) == "| a | b |\n| --- | --- |"


def test_no_entry_can_break_its_table() -> None:
    """A prompt may hold bars, line ends and prices."""
    assert markdown_table(("a",), [("x | y\nz\r\n$1",)]).splitlines()[2:] == ["| x \\| y z \\$1 |"]


@pytest.mark.parametrize(("rows", "align"), [([("1",)], "lr"), ([("1", "2")], "l")])
def test_lines_of_other_lengths_are_a_bug(rows: list[tuple[str, ...]], align: str) -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\] entries"):
        markdown_table(("a", "b"), rows, align=align)


def test_aligned_for_a_terminal() -> None:
    assert list(aligned_table([("", "B"), ("ar", "1"), ("mulosd", "16")])) == ["         B", "ar       1", "mulosd  16"]


def test_no_sign_before_nothing() -> None:
    assert [fixed(v, 2, signed=True) for v in (0.004, -0.004, 0.01, -0.01)] == ["0.00", "0.00", "+0.01", "−0.01"]


def test_the_results_table() -> None:
    note = Comparison({"forwards": Estimate(10.0)}, frozenset({"forwards"}), {"keeps_ar": "no|yes"}, ("a | note",))
    lines = render(table_of(row("a", "ar"), row("b", "mulosd", tau=0.1), b=note), "md").splitlines()
    assert lines[:4] == [
        "**a title**",
        "",
        "| method | n | forwards / image ↓ | fewer forwards ↑ | latency speed-up ↑ | GenEval ↑ | GenEval − ar ↑ "
        "| detail ↑ | detail kept ↑ | FD-EffNet ↓ | resampled | non-inferior to ar |",
        "| :-- |" + " --: |" * 10 + " :-- |",
    ]
    assert lines[5].startswith(
        "| mulosd tau=0.1 | 4 | **10.0** | –<sup>2</sup> | –<sup>3</sup> | 0.500 [0.400, 0.600] |"
    )
    assert lines[5].endswith("| no\\|yes |")
    assert lines[7] == "- a \\| note"
    assert lines[10] == "<sup>1</sup> forwards / image: not compared.  "


def test_two_cells_side_by_side() -> None:
    text = pair_markdown(PAIR)
    assert (
        "| metric | A | B | A − B | 95 % interval | n | A wins | p | shows |\n| :-- |" + " --: |" * 7 + " :-- |" in text
    )
    assert "What differs in the configuration:\n\n|  | A | B |\n| :-- | :-- | :-- |\n| method | mulosd | ar |\n" in text
    assert text.endswith("| prompt | A | B | A − B |\n| :-- | --: | --: | --: |\n"
                         "| a \\| b (`s/1/0`) | 0.000 | 1.000 | −1.000 |\n")  # fmt: skip


def test_the_table_of_regions() -> None:
    rates = {"object": Estimate(0.5, (0.4, 0.6), 3), "edge": Estimate(None), "background": Estimate(0.25)}
    shares = {"object": 0.2, "edge": 0.3, "background": 0.5}
    cell = CellRegions("mulosd", "tiny-mid", 3, np.full((2, 2), 0.25), np.full((2, 2), 0.5), shares, rates, rates)
    assert regions_markdown([cell]) == (
        "| target | method | n | rejected | rejected object | rejected edge | rejected background "
        "| resampled | resampled object | resampled edge | resampled background |\n"
        "| :-- | :-- |" + " --: |" * 9 + "\n"
        "| tiny-mid | mulosd | 3 | 25.0% | 50.0% [40.0, 60.0] | – | 25.0% | 50.0% | 50.0% [40.0, 60.0] | – | 25.0% |\n"
        "\n- Cells of tiny-mid's drafts: 20% object, 30% edge, 50% background.\n"
    )


def test_the_page_of_a_gpu() -> None:
    record = {"versions": {"torch": "2"}, "git": {"commit": "abc"}, "machine": {"load_1min": 1.0}}
    setup = {"name": "GPT-XL", "device_name": "GPU", "dtype": "bfloat16", "resampled_fraction": 0.25}
    found = {"phase": "256", "method": "ar, static", "images": 3, "median_s": 1.5, "floor_ms": None}
    rows = [dict.fromkeys(COLUMNS, "") | found]
    content = {"setup": setup, "record": record, "load_after": 2.0, "results": {}, "rows": rows}
    assert markdown(content).endswith(
        f"\n\n| {' | '.join(COLUMNS)} |\n" + "| --- " * 10 + "|\n| 256 | ar, static | 3 | 1.500 |" + "  |" * 6 + "\n"
    )
