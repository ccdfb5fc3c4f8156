"""The manifest of a cell: which files belong to it and what they must contain.

Standard library only. An entry is added after its file was published, so a file without an entry is
a leftover of a stopped run and never counts as done by itself.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mulosd.errors import DataError
from mulosd.files.publish import publish_json, read_json

SCHEMA_VERSION = 3
KEY_SCHEMA = 1  # what cell keys hash of it: a run continues cells of this version and of later ones
MANIFEST = "manifest.json"
_CHUNK = re.compile(r"^chunk-\d{5}\.parquet$")


@dataclass(frozen=True)
class FileEntry:
    """What one chunk file must be: its rows, size, digest, failed rows, and its first and last sample id."""

    rows: int
    bytes: int
    sha256: str
    failed: int
    first: str
    last: str


def chunk_name(index: int) -> str:
    """`chunk-00007.parquet` for chunk 7."""
    return f"chunk-{index:05d}.parquet"


def chunk_path(cell_dir: Path, index: int) -> Path:
    """Path of chunk `index` of a cell."""
    return cell_dir / "images" / chunk_name(index)


def read_manifest(cell_dir: Path) -> dict[str, FileEntry]:
    """File name -> entry; {} where no manifest exists yet; DataError where it is damaged."""
    path = cell_dir / MANIFEST
    if not path.exists():
        return {}
    value = _upgrade(read_json(path), path)
    if bad := [name for name in value["files"] if not _CHUNK.match(name)]:
        raise DataError(f"{path} names {bad[0]!r}, which is not a chunk file; delete the manifest and run again.")
    return {name: FileEntry(**entry) for name, entry in value["files"].items()}


def _upgrade(value: Any, path: Path) -> Any:
    """The manifest in today's form. Version 0 had no `failed`: it staged no failed rows."""
    version = value.get("schema")
    if version == 0:
        return {**value, "files": {name: {"failed": 0, **entry} for name, entry in value["files"].items()}}
    if version not in range(1, SCHEMA_VERSION + 1):
        raise DataError(
            f"{path} has schema version {version!r}, this program reads 0 to {SCHEMA_VERSION}; "
            "use the program that wrote it or another --out folder."
        )
    return value


def write_manifest(cell_dir: Path, files: dict[str, FileEntry]) -> None:
    """Publish the manifest of a cell; call it after the files it names are published."""
    entries: dict[str, Any] = {name: asdict(entry) for name, entry in sorted(files.items())}
    publish_json(cell_dir / MANIFEST, {"schema": SCHEMA_VERSION, "files": entries})
