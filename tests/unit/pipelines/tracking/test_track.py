"""Tracking against a real SQLite store: two levels of runs, nothing twice, nothing lost while it is down."""

import dataclasses
import json
import logging
import re
import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboards.rows import CellRow
from mulosd.errors import ConfigError, DataError, EnvironmentProblem, UserError
from pipelines.tracking.mlflow_rows import results_from_mlflow
from pipelines.tracking.mlflow_writer import TAG_LIMIT, note_of
from pipelines.tracking.sqlite_file import is_half_made, prepare
from pipelines.tracking.track import (
    NOT_A_KNOB,
    NotLogged,
    SweepMeta,
    Tracked,
    log_sweep,
    metric_values,
    params_of,
    sync,
    track_sweep,
)
from pipelines.tracking.tracking_uri import default_uri
from pipelines.tracking.ui import serve, server_command

IDS = ["geneval/0/0", "geneval/1/0"]
DATASET = {"name": "geneval", "digest": "0123456789abcdef", "source": {"name": "geneval"}, "num_prompts": 2}


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database: making one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    prepare(path, path.parent / "mlartifacts")
    assert [file.name for file in path.parent.iterdir()] == ["mlflow.db"]
    assert not is_half_made(path)
    return path


@pytest.fixture
def store(tmp_path: Path, template: Path) -> Path:
    """A store folder with an empty tracking database."""
    folder = tmp_path / "store"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    return folder


@pytest.fixture
def dead_uri() -> Iterator[str]:
    """A server that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def row(key: str, method: str, value: float | None = 0.5, num: int = 2, **knobs: object) -> CellRow:
    metric = {"value": value, "interval": [0.25, 0.75] if value else None, "n": num, "reason": "no colours"}
    counters = {"forwards_verify": dict.fromkeys([f"geneval/{i}/0" for i in range(num)], 8.0)}
    return CellRow(
        key, "tiny-mid", method, knobs, 256, {"geneval/overall": {**metric, "direction": "higher"}}, counters
    )


def rows() -> list[CellRow]:
    return [row("c1", "ar"), row("c2", "mulosd", None, tau=0.2)]


def meta(folder: Path, **changes: object) -> SweepMeta:
    sheet = folder / "sheet.png"
    sheet.write_bytes(b"png")
    facts, texts = {"mulosd.sweep": "toy"}, {"table.md": "| a |\n"}
    base = SweepMeta("sweep1", "toy", facts, texts, (sheet,), "the note", DATASET)
    return dataclasses.replace(base, **changes)


def logged(store: Path) -> dict[str, Any]:
    """Everything that a user sees, by cell key: params, tags without times, and the whole history of each metric."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=default_uri(store))
    experiment = client.get_experiment_by_name("mulosd")
    found: dict[str, Any] = {}
    for run in client.search_runs([experiment.experiment_id]):
        key = run.data.tags.get("mulosd.cell_key", "parent")
        assert key not in found, f"two runs for {key}"
        history = {
            name: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        inputs = [(i.dataset.name, i.dataset.digest) for i in run.inputs.dataset_inputs]
        artifacts = sorted(a.path for a in client.list_artifacts(run.info.run_id))
        found[key] = {
            "id": run.info.run_id,
            "status": run.info.status,
            "params": run.data.params,
            "tags": run.data.tags,
            "history": history,
            "inputs": inputs,
            "artifacts": artifacts,
        }
    return found


def without_ids(state: dict[str, Any]) -> dict[str, Any]:
    """What two records of the same sweep share."""
    ids = {value["id"]: key for key, value in state.items()}
    text = json.dumps({key: {k: v for k, v in value.items() if k != "id"} for key, value in state.items()})
    for run_id, key in ids.items():
        text = text.replace(run_id, key)
    result: dict[str, Any] = json.loads(text)
    return result


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
    with pytest.raises(ConfigError, match="passwords are not kept"):
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


def again(store: Path, uri: str | None = None) -> Tracked | NotLogged:
    """What `mulosd track` does."""
    return log_sweep(rows(), meta(store), store_dir=store, tracking_uri=uri, every=True)


def problem_of(result: Tracked | NotLogged) -> str:
    assert isinstance(result, NotLogged)
    assert len(result.problem.splitlines()) == 1
    return result.problem


def client_of(store: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=default_uri(store))


def test_a_parameter_that_changed_names_the_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    track_sweep(rows(), meta(store), store_dir=store)
    run_id = logged(store)["c1"]["id"]
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.tracking.track.params_of", lambda row, names: {"target": "other"})
        problem = problem_of(log_sweep(rows(), meta(store), store_dir=store))
        assert f"run {run_id} has the parameter target = tiny-mid and the store says other; delete that run" in problem
        for key in ("c1", "c2"):
            client_of(store).delete_run(logged(store)[key]["id"])
        assert isinstance(again(store), Tracked)
        assert logged(store)["c1"]["params"] == {"target": "other"}


@pytest.mark.parametrize("deleted", [("c1",), ("parent",), ("c1", "c2", "parent")])
def test_deleted_runs_are_made_again(store: Path, deleted: tuple[str, ...]) -> None:
    track_sweep([row("c1", "ar", 0.25, 1), rows()[1]], meta(store), store_dir=store)
    track_sweep(rows(), meta(store), store_dir=store)
    before = logged(store)
    for key in deleted:
        client_of(store).delete_run(before[key]["id"])
    result = again(store)
    assert isinstance(result, Tracked)
    seen = logged(store)
    assert {key for key in seen if seen[key]["id"] != before[key]["id"]} == set(deleted)
    assert without_ids(seen) == without_ids(before)
    assert again(store) == Tracked(result.tracking_uri, seen["parent"]["id"], 0, 2)
    assert logged(store) == seen


def test_a_deleted_experiment_is_named_and_nothing_is_claimed(store: Path) -> None:
    track_sweep(rows(), meta(store), store_dir=store)
    before = logged(store)
    client = client_of(store)
    experiment = client.get_experiment_by_name("mulosd").experiment_id
    client.delete_experiment(experiment)
    assert f"restore it with `mlflow experiments restore --experiment-id {experiment}`" in problem_of(again(store))
    assert track_sweep([row("c3", "ar")], meta(store), store_dir=store) is None
    client.restore_experiment(experiment)
    assert isinstance(again(store), Tracked)
    assert {key: run["id"] for key, run in logged(store).items()}.items() >= {
        k: r["id"] for k, r in before.items()
    }.items()


class Answer(BaseHTTPRequestHandler):
    """Answers every request alike."""

    code, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.code)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (400, b'{"error_code": "BAD_REQUEST", "message": "no such thing"}'),
        (403, b"Forbidden"),
        (404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "gone"}'),
        (409, b'{"error_code": "INVALID_STATE", "message": "not now"}'),
        (200, b""),
        (200, b"{}"),
        (200, b"<html>welcome</html>"),
    ],
)
def test_a_server_that_refuses_or_is_another_ones(store: Path, code: int, body: bytes) -> None:
    handler = type("Handler", (Answer,), {"code": code, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            uri = f"http://127.0.0.1:{server.server_port}"
            assert problem_of(log_sweep(rows(), meta(store), store_dir=store, tracking_uri=uri))
            assert problem_of(again(store, uri))
            with pytest.raises(UserError) as caught:
                results_from_mlflow(uri)
            assert len(str(caught.value).splitlines()) == 1
        finally:
            server.shutdown()
            thread.join()
    assert not (store / "outbox" / "sweep1.done.jsonl").exists()


def half_made(path: Path) -> None:
    """As a process leaves it that ends while MLflow rebuilds a table."""
    with closing(sqlite3.connect(path)) as connection:
        for table in ("experiments", "runs", "_alembic_tmp_experiments"):
            connection.execute(f"CREATE TABLE {table} (experiment_id INTEGER)")


def test_a_half_made_database_is_set_aside_and_made_again(
    store: Path, template: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    track_sweep(rows(), meta(store), store_dir=store)
    other = store.with_name("other")
    other.mkdir()
    half_made(other / "mlflow.db")
    half = (other / "mlflow.db").read_bytes()
    with pytest.raises(DataError, match="half-made by a stopped run; `mulosd track DIR` makes it again"):
        results_from_mlflow(default_uri(other))
    with pytest.raises(DataError, match="half-made"):
        server_command(other, port=5000)
    monkeypatch.setattr("pipelines.tracking.sqlite_file._make", lambda path, _: shutil.copy(template, path))
    assert track_sweep(rows(), meta(other), store_dir=other) is not None
    seen, expected = without_ids(logged(other)), without_ids(logged(store))
    assert (seen["c1"], seen["c2"]) == (expected["c1"], expected["c2"])
    assert seen["parent"]["artifacts"] == expected["parent"]["artifacts"]
    assert (other / "mlflow.db.half-made").read_bytes() == half
    assert "half-made by a stopped run" in caplog.text


def test_a_stop_while_the_database_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.store.tracking import sqlalchemy_store

    def stopped(self: Any, uri: str, artifacts: str) -> None:
        half_made(Path(uri.removeprefix("sqlite:///")))
        raise SystemExit(143)

    monkeypatch.setattr(sqlalchemy_store.SqlAlchemyStore, "__init__", stopped)
    with pytest.raises(SystemExit):
        prepare(tmp_path / "new" / "mlflow.db", tmp_path)
    assert not list((tmp_path / "new").iterdir())


def test_the_database_of_another_program_stays(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(ConfigError, match=r"is a database of another program; name another file"):
        track_sweep(rows(), meta(tmp_path), store_dir=tmp_path, tracking_uri=f"sqlite:///{path}")
    assert sorted(file.name for file in tmp_path.glob("other*")) == ["other.db", "other.db.lock"]


def test_a_file_that_is_no_database_is_a_sentence(store: Path) -> None:
    (store / "mlflow.db").write_bytes(b"not a database at all" * 100)
    assert "file is not a database" in problem_of(log_sweep(rows(), meta(store), store_dir=store))
    assert (store / "mlflow.db").read_bytes().startswith(b"not a database")


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
    with pytest.raises(ConfigError, match="is a server already"):
        server_command(tmp_path, port=5000, tracking_uri=dead_uri)
    (tmp_path / "mlflow.db").write_text("")
    command = server_command(tmp_path, port=5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == default_uri(tmp_path)
    with pytest.raises(EnvironmentProblem, match="in use"):
        serve(tmp_path, port=int(dead_uri.rpartition(":")[2]))
