"""Which tracking URIs are taken, what is printed of them, and that a dead server is noticed at once."""

import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from mulosd.errors import ConfigError
from pipelines.tracking.tracking_uri import backend_of, check_uri, default_uri, problem_of, public_uri


@pytest.mark.parametrize("uri", ["sqlite:////a/b.db", "postgresql+psycopg2://u:p@h/db", "mysql://h/db", "https://h:1"])
def test_allowed(uri: str) -> None:
    assert check_uri(uri) == uri


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("sqlite:///rel.db", "four slashes"),
        ("sqlite:rel.db", "four slashes"),
        ("sqlite://", "four slashes"),
        ("file:///tmp/mlruns", "not supported"),
        ("/tmp/mlruns", "not supported"),
        ("", "not supported"),
        ("databricks", "not supported"),
        ("http://", "no host"),
    ],
)
def test_refused(uri: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_uri(uri)


def test_passwords_are_masked() -> None:
    assert public_uri("postgresql://me:secret@db:5432/x") == "postgresql://me:***@db:5432/x"
    assert public_uri("http://127.0.0.1:5000") == "http://127.0.0.1:5000"
    with pytest.raises(ConfigError) as caught:
        check_uri("ftp://me:secret@host/x")
    assert "secret" not in str(caught.value)


def test_default_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("store")) == f"sqlite:///{tmp_path}/store/mlflow.db"
    assert check_uri(default_uri(Path("store")))


def test_a_dead_server_is_noticed_without_retries() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = held.getsockname()[1]
        start = time.monotonic()
        assert f"127.0.0.1:{port}" in str(problem_of(f"http://127.0.0.1:{port}"))
        assert f"127.0.0.1:{port}" in str(problem_of(f"postgresql://u:p@127.0.0.1:{port}/x"))
        assert time.monotonic() - start < 30  # its own retries take minutes
        held.listen()
        assert problem_of(f"http://127.0.0.1:{port}") is None


def test_a_database_made_again_is_another_backend(tmp_path: Path) -> None:
    path = tmp_path / "a b#.db"
    uri = f"sqlite:///{path}"
    assert backend_of(uri) is None
    seen = set()
    for created in (1, 2):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE experiments (experiment_id, name, creation_time)")
            assert backend_of(uri) is None
            connection.execute("INSERT INTO experiments VALUES (1, 'mulosd', ?)", (created,))
        seen.add(backend_of(uri))
        path.unlink()
    assert len(seen) == 2
    assert None not in seen
    path.write_text("no database")
    assert backend_of(uri) is None
    assert backend_of("postgresql://u:p@h/db") == "postgresql://u:***@h/db"
