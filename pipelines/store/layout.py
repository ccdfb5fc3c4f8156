"""The store (`--out DIR`): where cells, sweeps, bench runs and the outbox are. Many sweeps share one store.

    cells/<cell_key>/   cell.json (first), images/chunk-00000.parquet ..., manifest.json (last), scores/...
    sweeps/<sweep_key>/ sweep.json: its cells and what was scored; progress.json: where its run stands; partial.json: as
                        sweep.json, of the cells that a run has decoded before it has finished
    conditions/<encoder identity>/ what encoders made of prompts (see `conditions`)
    bench/<run>/        bench.json, rows.parquet
    outbox/             what waits for the tracking server

One writer per cell at a time (see `lease`).
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.files.folders import refuse_package
from mulosd.files.publish import publish_json, publish_over, read_json
from mulosd.stage.manifest import FileEntry, chunk_name, chunk_path, read_manifest, write_manifest
from pipelines.plan.cells import Cell, Chunk
from pipelines.store.lease import Lease, hold

LOCK = ".lock"
SWEEP, PARTIAL = "sweep.json", "partial.json"
CONDITIONS = "conditions"

_KEY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")


class Store:
    """Paths and state of one store folder; an absolute path, since workers may run in another directory."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._leases: dict[str, Lease] = {}

    @classmethod
    def open(cls, root: str | Path) -> "Store":
        """The store at `root`, created if needed; EnvironmentProblem before any work if chunks cannot be published."""
        store = cls(root)
        refuse_package(store.root)
        probe = store.root / f".probe.{secrets.token_hex(4)}.tmp"
        try:
            store.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
            is_exclusive = publish_over(probe, b"", None) and not publish_over(probe, b"", None)
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"the output folder {store.root} cannot be written ({error.strerror or error}); "
                "choose a writable folder with --out."
            ) from error
        if not is_exclusive:
            raise EnvironmentProblem(
                f"the file system of {store.root} does not keep two writers from making one file; "
                "choose an --out folder on another file system."
            )
        return store

    @classmethod
    def existing(cls, root: str | Path) -> "Store":
        """The store at `root` for reading; DataError where there is none."""
        store = cls(root)
        if not (store.root / "cells").is_dir() and not (store.root / "sweeps").is_dir():
            raise DataError(f"{store.root} is not a store; give the --out folder of `mulosd run`.")
        return store

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    def cell_dir(self, cell_key: str) -> Path:
        return self.root / "cells" / _checked(cell_key)

    def sweep_dir(self, sweep_key: str) -> Path:
        return self.root / "sweeps" / _checked(sweep_key)

    def conditions_dir(self, identity: str) -> Path:
        return self.root / CONDITIONS / _checked(identity)

    def bench_dir(self, run: str) -> Path:
        return self.root / "bench" / _checked(run)

    def chunk_path(self, cell_key: str, index: int) -> Path:
        return chunk_path(self.cell_dir(cell_key), index)

    def sweep_keys(self, *, unfinished: bool = False) -> list[str]:
        """Keys of the sweeps that finished here, the most recent last; unfinished: also of those that began."""
        names = (SWEEP, PARTIAL) if unfinished else (SWEEP,)
        found = {
            path.parent.name: (path.stat().st_mtime_ns, path.parent.name)
            for name in names
            for path in (self.root / "sweeps").glob(f"*/{name}")
            if _KEY.match(path.parent.name)
        }
        return sorted(found, key=lambda key: found[key])

    def read_sweep(self, sweep_key: str) -> dict[str, Any]:
        """The record of a sweep (see `driver`)."""
        value: dict[str, Any] = read_json(self.sweep_dir(sweep_key) / SWEEP)
        return value

    def write_sweep(self, sweep_key: str, record: Mapping[str, Any]) -> None:
        """Publish the record of a finished sweep; that of its unfinished run goes."""
        publish_json(self.sweep_dir(sweep_key) / SWEEP, dict(record))
        (self.sweep_dir(sweep_key) / PARTIAL).unlink(missing_ok=True)

    def run_records(self, sweep_key: str, record: Mapping[str, Any], *, is_new: bool) -> dict[str, Any]:
        """record: of the last run of a sweep that decoded or scored something; earlier: those before it. A run that
        found everything done (not is_new) leaves both as they are."""
        try:
            before = self.read_sweep(sweep_key)
        except DataError:  # none yet, or damaged
            return {"record": dict(record), "earlier": []}
        earlier = before.get("earlier", [])
        if not is_new:
            return {"record": before["record"], "earlier": earlier}
        return {"record": dict(record), "earlier": [*earlier, before["record"]]}

    def read_latest(self, sweep_key: str) -> dict[str, Any]:
        """The record of the unfinished run of a sweep where there is one, otherwise that of the sweep."""
        path = self.sweep_dir(sweep_key) / PARTIAL
        try:
            value: dict[str, Any] = read_json(path)
        except DataError:
            if path.exists():
                raise
            return self.read_sweep(sweep_key)  # there is none, or the run has just finished
        return value

    def write_partial(self, sweep_key: str, record: Mapping[str, Any]) -> None:
        publish_json(self.sweep_dir(sweep_key) / PARTIAL, dict(record))

    def read_cell(self, cell_key: str) -> dict[str, Any]:
        """The content of cell.json."""
        value: dict[str, Any] = read_json(self.cell_dir(cell_key) / "cell.json")
        return value

    def check_cell(self, cell: Cell) -> bool:
        """Whether the cell exists here; ConfigError naming the field where it was made with another setting."""
        path = self.cell_dir(cell.key) / "cell.json"
        if not path.exists():
            return False
        stored, wanted = read_json(path)["config"], dict(cell.config)
        for name in sorted({*stored, *wanted}):
            if stored.get(name) != wanted.get(name):
                raise ConfigError(
                    f"{path}: {name} is {stored.get(name)!r} in the stored cell and {wanted.get(name)!r} in this "
                    "sweep; undo the change or use another --out folder."
                )
        return True

    def open_cell(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Write cell.json, the first file of a cell, unless it is there and agrees. record: with what it ran."""
        if not self.check_cell(cell):
            content = {
                "config": dict(cell.config),
                "label": cell.label,
                "grid": list(cell.grid),
                "record": dict(record),
            }
            publish_json(self.cell_dir(cell.key) / "cell.json", content)

    def entries(self, cell_key: str) -> dict[int, FileEntry]:
        """Chunk index -> manifest entry, for the chunks whose files are still there."""
        folder = self.cell_dir(cell_key)
        return {
            int(name[6:11]): entry
            for name, entry in read_manifest(folder).items()
            if (folder / "images" / name).exists()
        }

    def record_chunk(self, cell_key: str, index: int, entry: FileEntry) -> None:
        """Add a published chunk to the manifest; entries whose file was deleted are dropped."""
        self.check_lease(cell_key)
        entries = {**self.entries(cell_key), index: entry}
        write_manifest(self.cell_dir(cell_key), {chunk_name(i): e for i, e in entries.items()})

    def staged(self, cell: Cell) -> int:
        """How many of the cell's wanted images are staged without failure (by the manifest)."""
        entries = self.entries(cell.key)
        return sum(
            min(entries[c.index].rows - entries[c.index].failed, c.wanted) for c in cell.chunks if c.index in entries
        )

    @contextmanager
    def lock_cell(self, cell_key: str, *, wait: bool = True) -> Iterator[None]:
        """Hold the cell's lock; waits for another run that works on the cell, or raises `lease.Locked`."""
        with hold(self.cell_dir(cell_key) / LOCK, wait=wait) as lease:
            self._leases[cell_key] = lease
            try:
                yield
            finally:
                del self._leases[cell_key]

    def check_lease(self, cell_key: str) -> None:
        """EnvironmentProblem when this run held the cell's lock and another one has taken it over."""
        if lease := self._leases.get(cell_key):
            lease.check()


def is_complete(entry: FileEntry | None, chunk: Chunk) -> bool:
    """Whether a manifest entry covers the chunk's wanted samples without a failed row."""
    return entry is not None and entry.failed == 0 and entry.rows >= chunk.wanted


def _checked(key: str) -> str:
    if not _KEY.match(key):
        raise DataError(f"{key!r} is not a key of this store; keys hold letters, digits, '.', '-' and '_'.")
    return key
