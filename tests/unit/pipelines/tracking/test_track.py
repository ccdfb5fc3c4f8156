"""Tracking against a real SQLite store: two levels of runs, nothing twice, nothing lost while it is down."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboards.numbers import NOT_A_KNOB
from dashboards.rows import CellRow
from mulosd.errors import ConfigError, EnvironmentProblem
from pipelines.tracking.mlflow_writer import TAG_LIMIT, note_of
from pipelines.tracking.track import (
    Tracked,
    metric_values,
    params_of,
    sync,
    track_sweep,
)
from pipelines.tracking.tracking_uri import default_uri
from pipelines.tracking.ui import serve, server_command
from tests.unit.pipelines.tracking.logged import DATASET, logged, meta, row, rows, without_ids


def test_metrics_have_legal_names_and_no_nulls() -> None:
    values = metric_values(row("a", "ar"))
    assert values["geneval/overall"] == 0.5
    assert values["geneval/overall_ci_lo"] == 0.25
    assert values["speed/forwards_per_image"] == 8.0
    odd = CellRow("a", "t", "ar", {}, 4, {"fid@5k,x": {"value": 1.0, "n": 1}})
    assert metric_values(odd)["fid_5k_x"] == 1.0
    assert "geneval/overall" not in metric_values(row("a", "ar", None))


def test_params_name_every_knob_of_the_sweep_with_its_default() -> None:
    params = params_of(row("a", "mulosd", tau=0.2), ["tau", "radius", "window"])
    assert params == {"target": "tiny-mid", "method": "mulosd", "tau": "0.2", "radius": "1", "window": NOT_A_KNOB}


def test_a_sweep_is_logged_once(store: Path) -> None:
    first = track_sweep(rows(), meta(store), store_dir=store)
    assert first is not None
    assert (first.written, first.unchanged) == (2, 0)
    assert first.tracking_uri == f"sqlite:///{store}/mlflow.db"
    seen = logged(store)
    assert sorted(seen) == ["c1", "c2", "parent"]
    assert all(run["status"] == "FINISHED" for run in seen.values())
    assert seen["c1"]["tags"]["mlflow.parentRunId"] == first.parent_run_id == seen["parent"]["id"]
    assert seen["c1"]["tags"]["mulosd.sweep"] == "toy"
    assert json.loads(seen["c1"]["tags"]["mulosd.directions"])["geneval/overall"] == "higher"
    assert seen["c2"]["params"]["tau"] == "0.2"
    assert "no colours" in seen["c2"]["tags"]["mulosd.missing"]
    assert seen["c1"]["history"]["geneval/overall"] == [(2, 0.5)]
    assert seen["c1"]["inputs"] == seen["parent"]["inputs"] == [("geneval", DATASET["digest"])]
    assert seen["parent"]["artifacts"] == ["sheet.png", "table.md"]
    note = seen["parent"]["tags"]["mlflow.note.content"]
    assert "the note" in note
    assert f"/runs/{seen['c1']['id']})" in note

    for lost in ((), ("sweep1.done.jsonl",), ("sweep1.jsonl", "sweep1.done.jsonl")):
        for name in lost:
            (store / "outbox" / name).unlink()
        again = track_sweep(rows(), meta(store), store_dir=store)
        assert again == Tracked(first.tracking_uri, first.parent_run_id, 0, 2, is_checked=bool(lost))
        assert [t.written for _, t in sync(store, every=True)] == [0]
    assert logged(store) == seen


def test_larger_and_smaller_limits_are_steps_without_repeats(store: Path) -> None:
    def tracked(num: int, value: float) -> Tracked | None:
        return track_sweep([row("c1", "ar", value, num)], meta(store), store_dir=store)

    for num, value in ((10, 0.5), (20, 0.75), (10, 0.5), (20, 0.75), (20, 0.8)):
        done = tracked(num, value)
        assert done is not None
        assert done.written == 1
    history = logged(store)["c1"]["history"]
    assert sorted(history["geneval/overall"]) == [(10, 0.5), (20, 0.75), (20, 0.8)]
    assert history["speed/forwards_per_image"] == [(10, 8.0)]


def test_a_server_that_is_down_for_the_whole_sweep(
    store: Path, dead_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pipelines.tracking.track"):
        assert track_sweep(rows(), meta(store), store_dir=store, tracking_uri=dead_uri) is None
        assert track_sweep(rows(), meta(store), store_dir=store, tracking_uri=dead_uri) is None
    assert "mulosd sync" in caplog.text
    with pytest.raises(EnvironmentProblem, match="nothing is lost"):
        list(sync(store))  # it goes where the sweep was meant to go
    done = dict(sync(store, tracking_uri=default_uri(store)))
    assert done["sweep1"].written == 2
    seen = logged(store)
    assert seen["c1"]["history"]["geneval/overall"] == [(2, 0.5)]
    assert dict(sync(store, tracking_uri=default_uri(store)))["sweep1"].written == 0
    assert logged(store) == seen


def test_a_password_is_not_kept(store: Path, dead_uri: str) -> None:
    uri = dead_uri.replace("http://", "http://me:secret@")
    assert track_sweep(rows(), meta(store), store_dir=store, tracking_uri=uri) is None
    assert "secret" not in (store / "outbox" / "sweep1.jsonl").read_text()
    with pytest.raises(ConfigError, match="passwords are never stored"):
        list(sync(store))


def test_a_new_database_gets_everything(store: Path, template: Path) -> None:
    track_sweep(rows(), meta(store), store_dir=store)
    before = without_ids(logged(store))
    shutil.rmtree(store / "mlartifacts")
    shutil.copy(template, store / "mlflow.db")
    again = track_sweep(rows(), meta(store), store_dir=store)
    assert again is not None
    assert again.written == 2
    after = without_ids(logged(store))
    assert after["c1"]["history"] == before["c1"]["history"]
    assert after["parent"]["artifacts"] == before["parent"]["artifacts"]


CALLS = ("create_run", "log_batch", "log_inputs", "set_terminated", "log_text", "log_artifact", "search_runs")


def test_stopping_anywhere_loses_and_repeats_nothing(
    store: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends before each call to MLflow in turn (so after the one before); then the sweep is logged again."""
    from mlflow.tracking import MlflowClient

    class Stopped(BaseException):
        pass

    def breaking(call: Callable[..., Any], count: list[int], at: int) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] != at:
                return call(*args, **kwargs)
            raise Stopped

        return wrapper

    def attempt(at: int) -> int:
        count = [0]
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(MlflowClient, name, breaking(getattr(MlflowClient, name), count, at))
            track_sweep(rows(), meta(store), store_dir=store)
        return count[0]

    num_calls = attempt(0)
    assert num_calls >= 12
    expected = without_ids(logged(store))
    for at in range(1, num_calls + 1):
        shutil.rmtree(store / "outbox")
        shutil.copy(template, store / "mlflow.db")
        shutil.rmtree(store / "mlartifacts")
        with pytest.raises(Stopped):
            attempt(at)
        assert track_sweep(rows(), meta(store), store_dir=store) is not None
        assert without_ids(logged(store)) == expected, at


def test_a_database_that_cannot_be_opened_leaves_everything_waiting(store: Path) -> None:
    (store / "file").write_text("")
    uri = f"sqlite:///{store}/file/x.db"
    assert track_sweep(rows(), meta(store), store_dir=store, tracking_uri=uri) is None
    assert len((store / "outbox" / "sweep1.jsonl").read_text().splitlines()) == 3


def test_a_long_note_keeps_whole_links() -> None:
    links = [(f"tiny-mid mulosd tau={i}" + "x" * 60, f"{i:032x}") for i in range(200)]
    for text in ("short", "x" * 4900, "x" * 9000):
        note = note_of(text, links, "1", "key")
        assert len(note) <= TAG_LIMIT
        lines = [line for line in note.splitlines() if line.startswith("- [")]
        assert lines
        assert all(re.fullmatch(r"- \[.*\]\(#/experiments/1/runs/[0-9a-f]{32}\)", line) for line in lines)
        assert "mulosd.sweep_key" in note.splitlines()[-1]


def test_the_ui_opens_the_right_store_on_loopback(tmp_path: Path, dead_uri: str) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        serve(tmp_path, port=5000)
    with pytest.raises(ConfigError, match="is already a server"):
        server_command(tmp_path, port=5000, tracking_uri=dead_uri)
    (tmp_path / "mlflow.db").write_text("")
    command = server_command(tmp_path, port=5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == default_uri(tmp_path)
    with pytest.raises(EnvironmentProblem, match="in use"):
        serve(tmp_path, port=int(dead_uri.rpartition(":")[2]))
