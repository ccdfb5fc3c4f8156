"""From a finished store to table, pictures and the commands that print them."""

import csv
import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from dashboards.render import render
from mulosd.errors import DataError, UserError
from pipelines.cli.bars import progress_bar
from pipelines.cli.main import cli
from pipelines.compare.report import read_results, results_table, write_report, write_sheet
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from tests.fakes import toy_sweep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with progress_bar() as progress:
        run_sweep(toy_sweep(), out=tmp_path / "store", progress=progress)
    return Store.existing(tmp_path / "store")


def test_table_of_a_store(store: Store) -> None:
    table = results_table(read_results(store))
    assert table.title == "toy · fake-a"
    assert table.rows[0].label == "ar"
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert [line["n"] for line in lines] == ["10"] * 3
    assert float(lines[0]["forwards"]) == 16
    assert float(lines[1]["forward_ratio"]) == pytest.approx(16 / 6)
    assert lines[0]["geneval"] == ""
    assert "GenEval: not evaluated in this sweep." in lines[0]["notes"]


def test_report_files_and_their_command(store: Store) -> None:
    report = write_report(store)
    assert report.plot is None  # no GenEval in the toy sweep
    folder = report.table_file.parent
    assert {"table.md", "table.csv", "table.tex", "contact_sheet.png"} <= {path.name for path in folder.iterdir()}
    printed = CliRunner().invoke(cli, ["table", str(store.root), "--format", "tex"])
    assert printed.exit_code == 0
    unscored = CliRunner().invoke(cli, ["table", str(store.root), "--plot", str(folder / "plot.png")])
    assert isinstance(unscored.exception, DataError)
    assert "score the sweep before plotting it" in str(unscored.exception)
    assert printed.output == (folder / "table.tex").read_text(encoding="utf-8")


def test_sheet_of_chosen_cells(store: Store, tmp_path: Path) -> None:
    keys = [cell["cell_key"] for cell in store.read_sweep(store.sweep_keys()[-1])["cells"]]
    one = write_sheet(store, tmp_path / "one.png", cells=(keys[0],), prompts=1)
    every = write_sheet(store, tmp_path / "all.png")
    with Image.open(one) as small, Image.open(every) as large:
        assert small.size[0] < large.size[0]
        assert small.size[1] < large.size[1]
    with pytest.raises(DataError, match="not part of sweep"):
        write_sheet(store, tmp_path / "none.png", cells=("nope",))
    assert not (tmp_path / "none.png").exists()


def test_gallery_and_verify_commands(store: Store, tmp_path: Path) -> None:
    drawn = CliRunner().invoke(cli, ["gallery", str(store.root), "--out", str(tmp_path / "g.png")])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "g.png").is_file()
    checked = CliRunner().invoke(cli, ["stage", "verify", str(store.root)])
    assert checked.exit_code == 0, checked.output
    chunk = sorted(store.root.glob("cells/*/images/*.parquet"))[0]
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(bytes(data))
    broken = CliRunner().invoke(cli, ["stage", "verify", str(store.root)])
    assert isinstance(broken.exception, UserError)
    assert chunk.name in broken.output


def test_progress_shows_the_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        run_sweep(toy_sweep(), out=tmp_path, progress=progress)
    shown = capsys.readouterr().err
    assert "cached 0, running 0, failed 0" in shown
    assert "30/30" in shown
    with progress_bar(disable=True) as progress:
        run_sweep(toy_sweep(), out=tmp_path, progress=progress)
    assert capsys.readouterr().err == ""
