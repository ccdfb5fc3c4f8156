"""Write one chunk of images as a Parquet file: PNG-encoded, with page checksums, published atomically."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mulosd.files.publish import publish_bytes, publish_over, sha256_hex
from mulosd.stage.manifest import FileEntry
from mulosd.stage.schema import COLUMNS, StagedSample, arrow_schema, pixel_digest, rows_digest
from mulosd.types import COUNTERS, Decoded, PromptTokens

# Reading one row costs its whole row group; images compress no further, so small groups lose nothing.
ROW_GROUP_ROWS = 32


def encode_png(image: np.ndarray) -> bytes:
    """PNG bytes of a uint8 [height, width, 3] RGB image."""
    from PIL import Image

    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image must be uint8 [height, width, 3], got {image.dtype} {image.shape}")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG")
    return buffer.getvalue()


def sample_row(sample: StagedSample) -> dict[str, Any]:
    """The row of one sample, keyed by `schema.COLUMNS`."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row.update(
        sample_id=sample.sample_id,
        benchmark=sample.benchmark,
        prompt_id=sample.prompt_id,
        prompt=sample.prompt,
        image_index=sample.image_index,
        seed=sample.seed,
        batch_images=sample.batch_images,
        error=sample.error,
        metadata=_metadata_text(sample.metadata),
    )
    if sample.prompt_tokens is not None:
        row.update(prompt_columns(sample.prompt_tokens))
    if sample.decoded is not None:
        row.update(_decoded_columns(sample.sample_id, sample.decoded))
    return row


def prompt_columns(tokens: PromptTokens) -> dict[str, int]:
    """What was read of a prompt, as columns of an image's row and of a condition's."""
    return {"prompt_tokens": tokens.read, "prompt_unknown": tokens.unknown, "prompt_cut": tokens.cut}


def publish_chunk(
    path: Path, rows: Sequence[Mapping[str, Any]], *, cell_key: str, base: str | None, versions: Sequence[str] = ()
) -> FileEntry | None:
    """Publish rows (of `sample_row` or read back) as the chunk `path`; its manifest entry.

    Only over the file content with sha256 `base` (None: no file); None where it has changed. Equal rows give equal
    bytes within one pyarrow version. Empty chunks and repeated sample ids are bugs. versions: of the code that made the
    rows, oldest first.
    """
    data = _chunk_bytes(path, rows, cell_key, versions)
    return entry_of(rows, data) if publish_over(path, data, base) else None


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Publish plain rows (numbers, strings, None) as a checksummed Parquet file; types are inferred. Returns its
    sha256."""
    data = _parquet_bytes(pa.Table.from_pylist([dict(row) for row in rows]))
    publish_bytes(path, data)
    return sha256_hex(data)


def entry_of(rows: Sequence[Mapping[str, Any]], data: bytes) -> FileEntry:
    """The manifest entry for `rows` stored as the file content `data`."""
    return FileEntry(
        rows=len(rows),
        bytes=len(data),
        sha256=sha256_hex(data),
        failed=sum(row["error"] is not None for row in rows),
        first=rows[0]["sample_id"],
        last=rows[-1]["sample_id"],
    )


def _decoded_columns(sample_id: str, decoded: Decoded) -> dict[str, Any]:
    height, width = decoded.tokens.shape
    if decoded.status.shape != (height, width) or decoded.status.dtype != np.uint8:
        raise ValueError(f"{sample_id}: status must be uint8 {(height, width)}, got {decoded.status.shape}")
    counters = {name: int(getattr(decoded.stats, name)) for name in COUNTERS}
    return {
        "image": {"bytes": encode_png(decoded.image), "path": sample_id.replace("/", "_") + ".png"},
        "pixel_sha256": pixel_digest(decoded.image),
        "token_ids": [int(token) for token in decoded.tokens.reshape(-1)],
        "grid_height": height,
        "grid_width": width,
        "status_map": decoded.status.tobytes(),
        **counters,
        "chosen_taus": list(decoded.stats.chosen_taus),
    }


def _metadata_text(metadata: dict[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _chunk_bytes(path: Path, rows: Sequence[Mapping[str, Any]], cell_key: str, versions: Sequence[str] = ()) -> bytes:
    """The file content. It names its cell and a digest of its rows, so that a file proves itself without a manifest."""
    ids = [row["sample_id"] for row in rows]
    if not ids or len(set(ids)) != len(ids):
        raise ValueError(f"{path.name}: a chunk needs rows with unique sample ids, got {len(ids)} rows")
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema())
    proof = {"mulosd.cell": cell_key, "mulosd.rows_sha256": rows_digest(table.to_pylist())}
    if versions:
        proof["mulosd.versions"] = json.dumps(list(versions), ensure_ascii=False)
    return _parquet_bytes(table.replace_schema_metadata({**table.schema.metadata, **proof}))


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    compression = dict.fromkeys(_leaf_columns(table.schema), "zstd")
    if "image.bytes" in compression:
        compression["image.bytes"] = "none"
    pq.write_table(
        table,
        sink,
        row_group_size=ROW_GROUP_ROWS,
        compression=compression,
        use_dictionary=False,
        write_page_checksum=True,
        write_page_index=True,
    )
    return bytes(sink.getvalue())


def _leaf_columns(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for column in schema:
        if pa.types.is_struct(column.type):
            names += [f"{column.name}.{child.name}" for child in column.type]
        elif pa.types.is_list(column.type):
            names.append(f"{column.name}.list.element")
        else:
            names.append(column.name)
    return names
