"""A store of 0.1.0 (commit 0b6c0f8) is read, continued and compared: its keys, chunks and rows stay valid.

`tests/fixtures/old_store` is what `mulosd run tests/fixtures/old_store.yaml --limit 2 --no-track` left at that commit,
without the images drawn of it.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mulosd.stage.verify import verify_store
from pipelines.compare.cell_rows import decode
from pipelines.compare.report import read_results, write_report
from pipelines.plan.build import build_plan
from pipelines.plan.sweep import load_sweep
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store

FIXTURES = Path(__file__).parents[1] / "fixtures"
SWEEP = FIXTURES / "old_store.yaml"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(FIXTURES / "old_store", tmp_path / "old")
    return Store.existing(tmp_path / "old")


def test_its_cells_have_the_keys_of_today(store: Store) -> None:
    planned = {cell.key for cell in build_plan(load_sweep(SWEEP, [])).cells}
    assert planned == {path.name for path in (store.root / "cells").iterdir()}


def test_a_finished_sweep_decodes_nothing_again(store: Store) -> None:
    images = {path: path.read_bytes() for path in store.root.glob("cells/*/images/*.parquet")}
    report = run_sweep(load_sweep(SWEEP, []), out=store.root, limit=2)
    assert len(images) == 4
    assert "8 cached, decoded 0, 0 failed" in report.summary()
    assert {path: path.read_bytes() for path in store.root.glob("cells/*/images/*.parquet")} == images


def test_its_states_were_pickles_and_are_made_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    before = {row.cell_key: row.metrics for row in read_results(store).rows}
    assert len(list(store.root.rglob("*.state"))) == 16
    assert "scores: 0 cached, 20 computed" in run_sweep(load_sweep(SWEEP, []), out=store.root, limit=2).summary()
    assert "16 score states are pickles of version 0.1" in caplog.text
    assert not list(store.root.rglob("*.state"))
    after = {row.cell_key: row.metrics for row in read_results(store).rows}
    for metrics in after.values():
        for metric in metrics.values():
            assert metric.pop("missing") == {}
            if metric["name"] == "fd_effnet":  # last digits depend on the threads of the process
                metric["value"] = pytest.approx(metric["value"], rel=1e-3)
    assert after == before
    assert verify_store(store.root) == []
    assert "scores: 20 cached, 0 computed" in run_sweep(load_sweep(SWEEP, []), out=store.root, limit=2).summary()


def test_its_rows_are_what_they_were(store: Store) -> None:
    (key,) = store.sweep_keys()
    content = json.loads((store.root / "sweeps" / key / "rows.json").read_text(encoding="utf-8"))
    old = {row.cell_key: row for row in decode(content, "rows.json").rows}
    new = {row.cell_key: row for row in read_results(store, key).rows}
    assert len(old) == 4
    assert new.keys() == old.keys()
    for cell, row in new.items():
        assert row.counters == old[cell].counters
        assert {name: metric["value"] for name, metric in row.metrics.items()} == {
            name: metric["value"] for name, metric in old[cell].metrics.items()
        }


def test_its_table_is_written(store: Store) -> None:
    text = write_report(store).table_file.read_text(encoding="utf-8")
    assert all(label in text for label in ("| ar |", "| draft-only |", "| zipar |", "| mulosd radius=2 |"))


def test_it_is_extended_by_the_same_images(store: Store) -> None:
    sweep = load_sweep(SWEEP, ["methods=[{method: draft-only}]"])
    (cell,) = build_plan(sweep).cells
    (chunk,) = (store.root / "cells" / cell.key / "images").iterdir()
    old = pq.read_table(chunk, columns=["sample_id", "token_ids", "pixel_sha256"]).to_pylist()
    assert "decoded 3, 0 failed" in run_sweep(sweep, out=store.root, limit=3).summary()
    new = pq.read_table(chunk, columns=["sample_id", "token_ids", "pixel_sha256"]).to_pylist()
    assert len(old) == 2
    assert new[:2] == old
    assert len(new) == 3
