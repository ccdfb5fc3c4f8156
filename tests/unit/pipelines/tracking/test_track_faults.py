"""A tracking store that was tampered with, refuses, or was left half-made: a sentence, and `track` mends it."""

import shutil
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError, DataError, UserError
from pipelines.tracking.mlflow_rows import results_from_mlflow
from pipelines.tracking.sqlite_file import prepare
from pipelines.tracking.track import NotLogged, Tracked, log_sweep, track_sweep
from pipelines.tracking.tracking_uri import default_uri
from pipelines.tracking.ui import server_command
from tests.unit.pipelines.tracking.logged import logged, meta, row, rows, without_ids


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
