"""Read staged rows: plain dictionaries, images and status maps as numpy arrays.

Rows are keyed by `schema.COLUMNS`; `image` is {"bytes", "path"} or None for a failed sample. Page
checksums are verified on every read. pyarrow rather than `datasets`, whose cache returns old rows of a
replaced file.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mulosd.errors import DataError, first_line
from mulosd.stage.manifest import SCHEMA_VERSION, read_manifest
from mulosd.stage.migrate import upgrade, version_of

_REPAIR = "delete the file and run the sweep again"


def read_rows(path: Path, *, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of one chunk file in their stored order; DataError when it is missing, broken or of another schema."""
    return rows_of(read_bytes(path), path, columns=columns)


def read_bytes(path: Path) -> bytes:
    """The content of a staged file; DataError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); {_REPAIR}.") from error


def rows_of(data: bytes, path: Path, *, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of a chunk whose content is `data`; `path` is for error texts."""
    rows: list[dict[str, Any]] = table_of(data, path, columns=columns).to_pylist()
    return rows


def table_of(data: bytes, path: Path, *, columns: Sequence[str] | None = None) -> pa.Table:
    """The Arrow table of a chunk whose content is `data`, in today's format whatever it was written in."""
    names = None if columns is None else list(columns)
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        version = version_of(file.schema_arrow, path)
        if version == SCHEMA_VERSION:
            return file.read(columns=names)
        table = upgrade(file.read(), version)
        return table if names is None else table.select(names)
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} is a damaged Parquet file ({first_line(error)}); {_REPAIR}.") from error


def proof_of(data: bytes) -> dict[str, str]:
    """What a chunk says of itself: `mulosd.cell` and `mulosd.rows_sha256`, each "" where it does not."""
    metadata = pq.ParquetFile(pa.BufferReader(data)).schema_arrow.metadata or {}
    names = ("mulosd.cell", "mulosd.rows_sha256")
    return {name: metadata.get(name.encode(), b"").decode("utf-8", "replace") for name in names}


def versions_of(path: Path) -> tuple[str, ...]:
    """Versions of the code that made a chunk's rows, oldest first; () where it does not say, as before 0.2."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is a damaged Parquet file ({str(error).splitlines()[0]}); {_REPAIR}.") from error
    return tuple(json.loads(metadata.get(b"mulosd.versions", b"[]")))


def columns_of(data: bytes) -> list[str]:
    """The columns that a chunk was written with, which an older format has fewer of."""
    return list(pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names)


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of `write.write_table`."""
    try:
        rows: list[dict[str, Any]] = pq.ParquetFile(path, page_checksum_verification=True).read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is missing or damaged ({first_line(error)}); run the bench again.") from error
    return rows


def iter_cell(cell_dir: Path, *, columns: Sequence[str] | None = None) -> Iterator[list[dict[str, Any]]]:
    """Rows of a cell, one list per chunk of its manifest, in chunk order; DataError where a sample occurs twice."""
    seen: set[str] = set()
    wanted = None if columns is None else list(dict.fromkeys([*columns, "sample_id"]))
    for name in sorted(read_manifest(cell_dir)):
        path = cell_dir / "images" / name
        rows = read_rows(path, columns=wanted)
        check_unique(rows, seen, path)
        yield (
            rows if columns is None or "sample_id" in columns else [{key: row[key] for key in columns} for row in rows]
        )


def check_unique(rows: Sequence[Mapping[str, Any]], seen: set[str], path: Path) -> None:
    """Add the rows' sample ids to `seen`; DataError where one is there already: no number may count an image twice."""
    for row in rows:
        if row["sample_id"] in seen:
            raise DataError(
                f"{path} holds sample {row['sample_id']} a second time; `mulosd stage repair` moves the file away."
            )
        seen.add(row["sample_id"])


def image_array(row: Mapping[str, Any]) -> np.ndarray | None:
    """The image of a row as uint8 [height, width, 3]; None for a failed sample."""
    from PIL import Image

    if row["image"] is None:
        return None
    with Image.open(io.BytesIO(row["image"]["bytes"])) as picture:
        return np.asarray(picture.convert("RGB"))


def status_array(row: Mapping[str, Any]) -> np.ndarray | None:
    """The status map of a row as uint8 [H, W]; None for a failed sample."""
    if row["status_map"] is None:
        return None
    return np.frombuffer(row["status_map"], dtype=np.uint8).reshape(row["grid_height"], row["grid_width"])


def metadata_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt's metadata."""
    value: dict[str, Any] = json.loads(row["metadata"])
    return value
