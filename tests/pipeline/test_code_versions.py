"""Which code made which images: recorded when they are made, never rewritten, and "mixed" where it differs."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from mulosd.stage.read import versions_of
from mulosd.stage.verify import mixed_versions
from pipelines.cli.main import cli
from pipelines.compare.report import code_note, read_results, write_report
from pipelines.host.provenance import code_version
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.tracking.log_sweep import track
from pipelines.tracking.outbox import Outbox
from tests.fakes import toy_sweep


def run(out: Path, version: str, monkeypatch: pytest.MonkeyPatch, limit: int | None = None) -> Store:
    """Run the toy sweep as the code of commit `version`."""
    made = {"versions": {"mulosd": "1.0"}, "git": {"commit": version, "diff_sha256": ""}, "machine": {}, "job": None}
    monkeypatch.setattr("pipelines.run.driver.provenance", lambda: made)
    run_sweep(toy_sweep(), out=out, limit=limit)
    return Store.existing(out)


def test_a_version_in_short() -> None:
    made = {"versions": {"mulosd": "0.1.0", "torch": "2.14.1"}, "git": {"commit": "a" * 40, "diff_sha256": "b" * 16}}
    assert code_version(made) == f"0.1.0 {'a' * 12}+{'b' * 8} torch 2.14.1"
    assert code_version({"versions": {"mulosd": "0.1.0", "torch": None}, "git": {"commit": None}}) == "0.1.0"
    assert code_version({}) == ""


def test_a_cell_extended_by_other_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = build_plan(toy_sweep()).cells[0].key
    store = run(tmp_path, "one", monkeypatch, limit=2)
    assert code_note(read_results(store).rows) == "Images by 1.0 one."
    assert mixed_versions(tmp_path) == []
    store = run(tmp_path, "two", monkeypatch)
    chunks = [versions_of(store.chunk_path(cell, index)) for index in range(3)]
    # Two of the first batch of three were there, and a batch is decoded whole.
    assert chunks == [("1.0 two",), ("1.0 two",), ("1.0 two",)]


def test_what_is_kept_keeps_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = build_plan(toy_sweep()).cells[0].key
    run(tmp_path, "one", monkeypatch, limit=3)
    store = run(tmp_path, "two", monkeypatch)
    chunks = [versions_of(store.chunk_path(cell, index)) for index in range(3)]
    assert chunks == [("1.0 one", "1.0 two"), ("1.0 two",), ("1.0 two",)]
    note = "Mixed: the images were made by several versions of the code: 1.0 one and 1.0 two (ar, mulosd"
    assert note in write_report(store).table_file.read_text(encoding="utf-8")
    done = CliRunner().invoke(cli, ["stage", "verify", str(tmp_path)])
    assert done.exit_code == 0
    assert (
        "mixed, its images were made by several versions of the code: 1.0 one and 1.0 two (chunk-00000)" in done.output
    )
    assert len(mixed_versions(tmp_path / "cells" / cell)) == 1


def test_a_run_with_nothing_to_do_rewrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = run(tmp_path, "one", monkeypatch, limit=3)
    (key,) = store.sweep_keys()
    write_report(store)
    with caplog.at_level(logging.ERROR):
        assert not track(store, tracking_uri="http://127.0.0.1:9")  # into the outbox only
    record, said = (tmp_path / "sweeps" / key / "sweep.json").read_bytes(), Outbox(store.outbox).entries(key)
    store = run(tmp_path, "two", monkeypatch, limit=3)
    write_report(store)
    assert not track(store, tracking_uri="http://127.0.0.1:9")
    assert (tmp_path / "sweeps" / key / "sweep.json").read_bytes() == record
    assert Outbox(store.outbox).entries(key) == said

    store = run(tmp_path, "three", monkeypatch)
    assert [one["git"]["commit"] for one in store.read_sweep(key)["earlier"]] == ["one"]
    assert store.read_sweep(key)["record"]["git"]["commit"] == "three"
    track(store, tracking_uri="http://127.0.0.1:9")
    tags = {entry.cell_key: entry.content["tags"] for entry in Outbox(store.outbox).entries(key)}
    cell = build_plan(toy_sweep()).cells[0].key
    assert tags[cell]["mulosd.code"] == "1.0 one; 1.0 three"
    assert tags[cell]["mlflow.source.git.commit"] == "mixed"
    assert tags[""]["mlflow.source.git.commit"] == "three"


def test_a_store_that_does_not_say_is_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = build_plan(toy_sweep()).cells[0].key
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.run.driver.code_version", lambda record: "")
        store = run(tmp_path, "old", monkeypatch, limit=3)
    assert versions_of(store.chunk_path(cell, 0)) == ()
    assert read_results(store).notes == ()
    assert mixed_versions(tmp_path) == []
    store = run(tmp_path, "new", monkeypatch)
    assert versions_of(store.chunk_path(cell, 0)) == ("unknown", "1.0 new")
    assert len(mixed_versions(tmp_path)) == 3
