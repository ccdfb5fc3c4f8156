"""Find what can be removed from a cell or folder: temp files of killed writers and what `repair` moved away."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mulosd.stage.repair import QUARANTINE

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
        """Delete it; a file that is gone already is no error."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def leftovers(folder: Path, *, stale_s: float = 0.0) -> Iterator[Removable]:
    """Temp files below `folder` that are older than `stale_s`, and a cell's quarantine."""
    quarantine = folder / QUARANTINE
    for path in sorted(folder.rglob(".*.tmp")):
        if path.is_file() and time.time() - path.stat().st_mtime >= stale_s:
            yield Removable(path, "temp file of a writer that was killed", path.stat().st_size)
    if quarantine.is_dir():
        yield removable(quarantine, "damaged files that repair moved away")


def removable(path: Path, reason: str) -> Removable:
    """`path` with the size of all that is in it."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return Removable(path, reason, sum(file.stat().st_size for file in files))
