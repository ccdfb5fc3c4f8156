"""Staged rows and cells for tests of the stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mulosd.files.publish import publish_json, sha256_hex
from mulosd.stage.manifest import FileEntry, chunk_path, write_manifest
from mulosd.stage.schema import StagedSample
from mulosd.stage.write import publish_chunk, sample_row
from mulosd.types import COUNTERS, Decoded, DecodeStats


def row(index: int, **changes: Any) -> dict[str, Any]:
    """The row of sample `toy/p<index>/0`."""
    rng = np.random.default_rng(index)
    decoded = Decoded(
        tokens=rng.integers(0, 100, (3, 5), dtype=np.int32),
        image=rng.integers(0, 256, (6, 10, 3), dtype=np.uint8),
        status=rng.integers(0, 4, (3, 5), dtype=np.uint8),
        stats=DecodeStats(**{name: i + index for i, name in enumerate(COUNTERS)}),
    )
    sample = StagedSample(f"toy/p{index}/0", "toy", f"p{index}", "a circle", 0, index, {"tag": "colors"}, decoded)
    return {**sample_row(sample), **changes}


def write_chunk(path: Path, rows: Sequence[Mapping[str, Any]], *, cell_key: str = "") -> FileEntry:
    """Publish a chunk over whatever is there."""
    base = sha256_hex(path.read_bytes()) if path.exists() else None
    entry = publish_chunk(path, rows, cell_key=cell_key, base=base)
    assert entry is not None
    return entry


def make_cell(root: Path, chunks: int = 2, rows: int = 2) -> Path:
    """A recorded cell below `root`."""
    cell = root / "cells" / "0123456789abcdef"
    publish_json(cell / "cell.json", {"config": {}})
    entries = {}
    for index in range(chunks):
        path = chunk_path(cell, index)
        content = [row(index * rows + i) for i in range(rows)]
        entries[path.name] = write_chunk(path, content, cell_key=cell.name)
    write_manifest(cell, entries)
    return cell
