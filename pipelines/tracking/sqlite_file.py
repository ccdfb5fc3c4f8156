"""The SQLite file of a tracking store: made whole or not at all, and a file that was made by half is set aside.

MLflow makes its tables in dozens of migrations that commit one by one. A process that ends among them leaves a file
that no later one can open, so it is made under a temporary name and moved into place when it is whole.
"""

import logging
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from mulosd.errors import ConfigError
from mulosd.files.publish import place_new

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
_COMPANIONS = ("-journal", "-wal", "-shm")
# Tables that a file has early in its making; MLflow itself enters the first experiment when all migrations are done.
_EARLY = {"alembic_version", "experiments", "_alembic_tmp_experiments"}


def prepare(path: Path, artifacts: Path) -> None:
    """Leave a whole database at `path`: one that is there stays, a half-made one moves to `<name>.half-made`, and where
    there is none MLflow makes it. artifacts: where its default experiment keeps files. Hold the file's lock.

    ConfigError for a database of another program.
    """
    if path.is_file() and path.stat().st_size and _is_half_made(path):
        log.warning("%s was left half-made by a stopped run; moved to %s and made again", path, _set_aside(path))
    if not path.is_file() or not path.stat().st_size:
        _make(path, artifacts)


def is_half_made(path: Path) -> bool:
    """Whether MLflow began to make the file and did not finish; nothing is logged in it then."""
    with suppress(ConfigError):
        return path.is_file() and path.stat().st_size > 0 and _is_half_made(path)
    return False


def _is_half_made(path: Path) -> bool:
    try:
        # Not read-only: SQLite first undoes the transaction that a killed writer left in the journal.
        with closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = {name for (name,) in found}
            if "experiments" in tables and connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone():
                return False
            if "runs" in tables and connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone():
                return False
    except sqlite3.Error:
        return False  # damaged in another way: MLflow says how
    if tables and not tables & _EARLY:
        raise ConfigError(
            f"{path} is a database of another program; name another file: --tracking-uri sqlite:////absolute/path.db"
        )
    return True


def _set_aside(path: Path) -> Path:
    number, target = 0, path.with_name(f"{path.name}.half-made")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.half-made.{number}")
    path.rename(target)
    for ending in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
    return target


def _make(path: Path, artifacts: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        store = SqlAlchemyStore(f"sqlite:///{temp}", artifacts.as_uri())
        store.engine.dispose()
        with temp.open("rb") as file:
            os.fsync(file.fileno())
        if path.is_file() and not path.stat().st_size:
            temp.replace(path)
        else:
            place_new(temp, path)  # a file that another program has made meanwhile stays
    finally:
        for ending in ("", *_COMPANIONS):
            temp.with_name(temp.name + ending).unlink(missing_ok=True)
