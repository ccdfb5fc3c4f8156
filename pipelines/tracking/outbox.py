"""The outbox of a store: append-only files between finished sweeps and the tracking server.

    outbox/<sweep_key>.jsonl        entries: what a cell or a sweep has to say, in the order it was said
    outbox/<sweep_key>.done.jsonl   which entry reached which tracking store, and as which run

An entry carries its own digest and time, so that a replay logs the very same points. Knows nothing of MLflow. A line
that a crash cut short ends without a newline: it was never acknowledged, and the run that wrote it writes it again.
"""

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.files.publish import canonical_json, sha256_hex

log = logging.getLogger(__name__)

SWEEP = ""  # cell_key of the entry that speaks for the whole sweep


@dataclass(frozen=True)
class Entry:
    """What one cell (or, with cell_key "", its sweep) says. time_ms: when it was put in, also the time of its points.

    uri: the tracking store that was asked for, without a password.
    """

    sweep_key: str
    cell_key: str
    content: Mapping[str, Any]
    time_ms: int
    uri: str = ""

    @property
    def sha(self) -> str:
        """Digest of who says what."""
        return sha256_hex(canonical_json([self.cell_key, dict(self.content)]))[:16]

    @property
    def id(self) -> str:
        """Unique in its outbox."""
        return f"{self.sha}-{self.time_ms}"


class Outbox:
    """The outbox in `folder`; created by the first entry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sweep_keys(self) -> list[str]:
        """Sweeps that have entries."""
        names = (path.name.removesuffix(".jsonl") for path in self.folder.glob("*.jsonl"))
        return sorted(name for name in names if not name.endswith(".done"))

    def entries(self, sweep_key: str) -> list[Entry]:
        """All entries of a sweep, oldest first; DataError for a damaged line."""
        found = []
        for number, line in _lines(self._path(sweep_key)):
            entry = Entry(sweep_key, line["cell_key"], line["content"], line["time_ms"], line["uri"])
            if entry.id != line["id"]:
                path = self._path(sweep_key)
                raise DataError(f"{path}:{number} is damaged; delete the file and run `mulosd track` on the store.")
            found.append(entry)
        return found

    def add(self, sweep_key: str, contents: Mapping[str, Mapping[str, Any]], *, uri: str) -> int:
        """Append what each cell has to say (cell key -> content); what it said last is not repeated.

        Returns how many entries were appended.
        """
        last = {entry.cell_key: entry.sha for entry in self.entries(sweep_key)}
        now = int(time.time() * 1000)
        fresh = [Entry(sweep_key, cell_key, content, now, uri) for cell_key, content in contents.items()]
        fresh = [entry for entry in fresh if last.get(entry.cell_key) != entry.sha]
        _append(self._path(sweep_key), [_line(entry) for entry in fresh])
        return len(fresh)

    def pending(self, sweep_key: str, backend: str | None) -> list[Entry]:
        """Entries that did not reach `backend` yet, oldest first; all of them for a backend that is new (None)."""
        done = {} if backend is None else self.done(sweep_key, backend)
        return [entry for entry in self.entries(sweep_key) if entry.id not in done]

    def done(self, sweep_key: str, backend: str) -> dict[str, str]:
        """Entry id -> run id, for what reached `backend`."""
        lines = (line for _, line in _lines(self._done_path(sweep_key)))
        return {line["id"]: line["run_id"] for line in lines if line["backend"] == backend}

    def acknowledge(self, sweep_key: str, backend: str, runs: Sequence[tuple[Entry, str]]) -> None:
        """Note that these entries are logged as these runs."""
        records = [{"id": entry.id, "backend": backend, "run_id": run_id} for entry, run_id in runs]
        _append(self._done_path(sweep_key), records)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One writer at a time, for this outbox and what it feeds."""
        with locked(self.folder / ".lock"):
            yield

    def _path(self, sweep_key: str) -> Path:
        return self.folder / f"{sweep_key}.jsonl"

    def _done_path(self, sweep_key: str) -> Path:
        return self.folder / f"{sweep_key}.done.jsonl"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; waits for the process that holds it. A dead process holds nothing."""
    lock = FileLock(path, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("%s is held by another process; waiting for it", path)
            lock.acquire()
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be locked ({error.strerror or error}); use a folder whose file system can lock."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _line(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "cell_key": entry.cell_key,
        "time_ms": entry.time_ms,
        "uri": entry.uri,
        "content": dict(entry.content),
    }


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, value) of each whole line."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            log.info("%s:%d was cut short by a crash and is ignored", path, number)
            return
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}:{number} is not JSON ({error}); delete the file and log again.") from error
            yield number, value


def _append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append one line per record in one write; a line that a crash cut short is dropped first."""
    data = b"".join(canonical_json(dict(record)) + b"\n" for record in records)
    if not data:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.truncate(_whole(file))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written ({error.strerror or error}); free some space.") from error


def _whole(file: IO[bytes]) -> int:
    """Length of the file up to its last newline."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1
