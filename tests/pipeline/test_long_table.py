"""Scores per sample: written beside metrics.json, mended by a run, and exported as one long table."""

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError, DataError
from mulosd.files.publish import publish_json, read_json
from mulosd.methods import MuLoSD
from mulosd.stage.verify import verify_store
from pipelines.cli.main import cli
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.long_table import export_scores
from pipelines.store.results import collect
from tests.fakes import FAIL_FILE, toy_sweep


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    (tmp_path / "fail").write_text("prompt 3\n", encoding="utf-8")
    monkeypatch.setenv(FAIL_FILE, str(tmp_path / "fail"))
    run_sweep(toy_sweep(max_failed=9), out=tmp_path / "store", limit=5)
    return Store.existing(tmp_path / "store")


def exported(store: Store, out: Path) -> list[dict[str, Any]]:
    export_scores(store, out)
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows


def test_a_row_per_cell_metric_and_sample(store: Store, tmp_path: Path) -> None:
    rows = exported(store, tmp_path / "t.parquet")
    cells = {row.cell_key: row for row in collect(store)}
    assert len(rows) == 3 * 5
    assert [row["method"] for row in rows[::5]] == ["ar", "mulosd", "mulosd"]
    assert [row["knob_tau"] for row in rows[::5]] == [None, 0.05, 0.2]
    for row in rows:
        assert (row["sweep"], row["target"], row["evaluator"], row["metric"]) == ("toy", "fake-a", "mean", "mean")
        assert row["sample_id"] == f"toy/{row['prompt_id']}/{row['image_index']}"
        if row["prompt_id"] != "003":
            assert row["value"] == cells[row["cell_key"]].metrics["mean"]["per_sample"][row["sample_id"]]
            assert row["reason"] == ""


def test_a_knob_at_its_default_has_that_value(tmp_path: Path) -> None:
    methods = [{"method": "ar"}, {"method": "mulosd"}, {"method": "mulosd", "set": {"tau": 0.2}}]
    run_sweep(toy_sweep(methods=methods), out=tmp_path / "store", limit=1)
    rows = exported(Store.existing(tmp_path / "store"), tmp_path / "t.parquet")
    assert [row["knob_tau"] for row in rows] == [None, MuLoSD().tau, 0.2]


def test_a_failed_sample_is_null_with_its_reason(store: Store, tmp_path: Path) -> None:
    failed = [row for row in exported(store, tmp_path / "t.parquet") if row["value"] is None]
    assert [row["sample_id"] for row in failed] == ["toy/003/0"] * 3
    assert all("cannot draw 'prompt 3'" in row["reason"] for row in failed)
    assert len({row["cell_key"] for row in failed}) == 3


def test_csv_holds_the_same(store: Store, tmp_path: Path) -> None:
    rows = exported(store, tmp_path / "t.parquet")
    export_scores(store, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        texts = list(csv.DictReader(file))
    assert list(texts[0]) == list(rows[0])
    assert [text["value"] for text in texts if text["prompt_id"] == "003"] == ["", "", ""]
    assert [float(text["value"]) for text in texts if text["value"]] == [
        r["value"] for r in rows if r["value"] is not None
    ]


def test_the_command(store: Store, tmp_path: Path) -> None:
    args = ["export", str(store.root), "--out", str(tmp_path / "t.csv")]
    assert CliRunner().invoke(cli, [*args, "--dry-run"]).output.startswith("would write 15 rows of ")
    assert not (tmp_path / "t.csv").exists()
    assert CliRunner().invoke(cli, args).output.startswith("wrote 15 rows of ")
    with pytest.raises(ConfigError, match=r"allowed are names that end in \.parquet or \.csv"):
        export_scores(store, tmp_path / "t.txt")
    with pytest.raises(ConfigError, match="unknown sweep key"):
        export_scores(store, tmp_path / "t.csv", "x")


def test_a_damaged_file_is_refused_and_a_run_mends_it(store: Store, tmp_path: Path) -> None:
    path = next(store.root.glob("cells/*/scores/*/samples-*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    assert [problem.path for problem in verify_store(store.root)] == [path]
    with pytest.raises(DataError, match="does not match"):
        export_scores(store, tmp_path / "t.csv", dry_run=True)
    assert run_sweep(toy_sweep(max_failed=9), out=store.root, limit=5).scores_done == 1
    assert path.read_bytes() == whole
    assert verify_store(store.root) == []


def test_scores_of_replaced_images_leave_no_file(store: Store) -> None:
    before = set(store.root.glob("cells/*/scores/*/samples-*.parquet"))
    run_sweep(toy_sweep(max_failed=9), out=store.root)
    after = set(store.root.glob("cells/*/scores/*/samples-*.parquet"))
    assert len(before) == len(after) == 3
    assert not before & after


def test_scores_of_an_older_version_are_named(store: Store, tmp_path: Path) -> None:
    path = next(store.root.glob("cells/*/scores/*/metrics.json"))
    content = read_json(path)
    for result in content["results"].values():
        del result["samples"]
    publish_json(path, content)
    with pytest.raises(DataError, match="kept no scores per sample; run the sweep again"):
        export_scores(store, tmp_path / "t.csv")
    assert verify_store(store.root) == []
    assert run_sweep(toy_sweep(max_failed=9), out=store.root, limit=5).scores_done == 1
    assert export_scores(store, tmp_path / "t.csv")[0] == 15
