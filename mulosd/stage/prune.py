"""Find what can be removed from a cell or folder: temp files of killed writers and what `repair` moved away."""

import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mulosd.stage.conditions import condition_entries, staged_keys
from mulosd.stage.manifest import write_manifest
from mulosd.stage.repair import QUARANTINE

TEMP_FILES = ".*.tmp*"  # SQLite's journal is named after its file
STALE_S = 3600.0  # a temp file outside a locked cell may be in the making; none takes an hour


@dataclass(frozen=True)
class Removable:
    """A file or folder that can go, why, and its size in bytes."""

    path: Path
    reason: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.reason} ({self.bytes / 2**20:.1f} MiB)"

    def remove(self) -> None:
        """Delete it; a file that is already gone is not an error."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def leftovers(folder: Path, *, stale_s: float = 0.0) -> Iterator[Removable]:
    """Temp files below `folder` that are older than `stale_s`, and a cell's quarantine."""
    yield from temp_files(folder.rglob(TEMP_FILES), stale_s=stale_s)
    quarantine = folder / QUARANTINE
    if quarantine.is_dir():
        yield removable(quarantine, "damaged files that repair moved away")


def temp_files(paths: Iterable[Path], *, stale_s: float) -> Iterator[Removable]:
    """Those of the temp files `paths` that are older than `stale_s`."""
    for path in sorted(paths):
        if path.is_file() and time.time() - path.stat().st_mtime >= stale_s:
            yield Removable(path, "temp file of a writer that was killed", path.stat().st_size)


def unused_conditions(folder: Path, used: Collection[str], *, dry_run: bool = False) -> list[Removable]:
    """Chunks of one encoder's folder that hold none of the conditions `used` (keys), or the folder if all are such.

    Unless dry_run they leave the manifest here, before they are deleted. Hold the folder's lock.
    """
    reason = "no finished sweep was decoded from these conditions"
    entries = condition_entries(folder)
    where = staged_keys(folder, entries)
    kept = {where[key] for key in used if key in where}
    if not kept:
        return [removable(folder, reason)]
    if not dry_run:
        write_manifest(folder, {name: entries[name] for name in kept})
    return [removable(path, reason) for path in sorted(folder.glob("*.parquet")) if path.name not in kept]


def removable(path: Path, reason: str) -> Removable:
    """`path` with the size of all that is in it."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return Removable(path, reason, sum(file.stat().st_size for file in files))
