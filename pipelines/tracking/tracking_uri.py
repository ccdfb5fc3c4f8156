"""Tracking URIs: which are allowed, whether something answers there, and which store it is. No MLflow import.

A URI names an MLflow server (http, https) or a database (SQLite at an absolute path, Postgres, MySQL). MLflow's own
default is a file in the current folder, which inside a Ray job is a copy that is thrown away: here it is explicit.
"""

import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from mulosd.errors import ConfigError

EXPERIMENT = "mulosd"
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
SQLITE = "sqlite:///"
TIMEOUT_S = 5.0
ALLOWED = "sqlite:////absolute/path.db, postgresql://..., mysql://..., http(s)://..."


def default_uri(store_dir: Path) -> str:
    """The SQLite file of a store, absolute."""
    return f"{SQLITE}{store_dir.resolve() / 'mlflow.db'}"


def check_uri(uri: str) -> str:
    """`uri` when it can hold runs; ConfigError otherwise, before anything is opened."""
    shown = public_uri(uri)
    if uri.startswith("sqlite:"):
        path = uri.removeprefix(SQLITE)
        if not uri.startswith(SQLITE) or not path.startswith("/"):
            example = f"{SQLITE}{Path(path.lstrip('/') or 'mlflow.db').absolute()}"
            raise ConfigError(
                f"tracking URI {shown} names no absolute path; write {example} (four slashes), because a relative one "
                "depends on the current folder."
            )
        return uri
    if _kind(uri) not in PORTS:
        raise ConfigError(f"tracking URI {shown} is not supported; allowed: {ALLOWED}.")
    if not urlsplit(uri).hostname:
        raise ConfigError(f"tracking URI {shown} names no host; allowed: {ALLOWED}.")
    return uri


def public_uri(uri: str) -> str:
    """`uri` with its password masked: what may be printed and stored."""
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:***@{host}").geturl()


def sqlite_path(uri: str) -> Path | None:
    """The file behind a SQLite URI; None for another kind."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None


def problem_of(uri: str, *, timeout_s: float = TIMEOUT_S) -> str | None:
    """Why nothing answers at `uri`, None when something does.

    A connection first, because MLflow's client retries for minutes when a server is down.
    """
    if sqlite_path(uri) is not None:
        return None
    parts = urlsplit(uri)
    host, port = parts.hostname or "", _port(parts)
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return f"nothing answers at {host}:{port} ({error.strerror or error})"
    return None


def backend_of(uri: str) -> str | None:
    """Identity of the tracking store; None where it is not there yet or cannot be distinguished from a new one.

    A SQLite file that was deleted and made again is another store (its experiment has another creation time). A server
    is known by its address only: `mulosd sync --all` logs everything again when its database was replaced.
    """
    path = sqlite_path(uri)
    if path is None:
        return public_uri(uri)
    if not path.is_file():
        return None
    query = "SELECT experiment_id, creation_time FROM experiments WHERE name = ?"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT_S)) as connection:
            row = connection.execute(query, (EXPERIMENT,)).fetchone()
    except sqlite3.Error:
        return None  # MLflow says what is wrong with it
    return f"{uri}#{row[0]}@{row[1]}" if row else None


def _kind(uri: str) -> str:
    """`postgresql` of `postgresql+psycopg2://...`."""
    return urlsplit(uri).scheme.partition("+")[0]


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme.partition("+")[0]]
