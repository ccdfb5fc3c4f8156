"""Staged conditions: what an encoder made of prompts, kept so that no sweep over decoding knobs encodes twice.

    conditions/<encoder identity>/   chunk-00000.parquet ..., manifest.json (last), .lock

A row is one condition: `key` (prompt, and the seed where the encoder samples), the packed values, the ids that are
padding, and how it was made: seconds of the encoder call and prompts in it. A prompt whose encoding failed is a row
with `error`; the next run tries it again. Rows of later chunks replace those of earlier ones.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mulosd.errors import DataError
from mulosd.files.publish import canonical_json, publish_bytes, sha256_hex
from mulosd.stage.manifest import MANIFEST, FileEntry, read_manifest
from mulosd.stage.read import read_bytes

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("prompt", pa.string()),
        ("seed", pa.int64()),
        ("dtype", pa.string()),
        ("length", pa.int32()),
        ("shape", pa.list_(pa.int32())),
        ("values", pa.binary()),
        ("padded_ids", pa.int32()),
        ("encode_s", pa.float64()),
        ("batch_prompts", pa.int32()),
        ("prompt_tokens", pa.int32()),  # these three are absent from chunks of 0.1.0
        ("prompt_unknown", pa.int32()),
        ("prompt_cut", pa.int32()),
        ("error", pa.string()),
    ]
)


def condition_key(prompt: str, seed: int | None) -> str:
    """The key of a condition below its encoder's identity; seed None: the encoder does not sample."""
    return hashlib.sha256(canonical_json([prompt, seed])).hexdigest()[:32]


def write_conditions(path: Path, rows: Sequence[Mapping[str, Any]]) -> FileEntry:
    """Publish rows as one chunk; what a row lacks is null. Its manifest entry names the first and the last key."""
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([{name: row.get(name) for name in SCHEMA.names} for row in rows], schema=SCHEMA)
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_page_checksum=True)
    data = bytes(sink.getvalue())
    publish_bytes(path, data)
    failed = sum(row.get("error") is not None for row in rows)
    return FileEntry(len(rows), len(data), sha256_hex(data), failed, rows[0]["key"], rows[-1]["key"])


def read_conditions(
    path: Path, entry: FileEntry, keys: Iterable[str] | None = None, *, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of a chunk that is what its entry says, all or those of `keys`; DataError otherwise."""
    data = read_bytes(path)
    if len(data) != entry.bytes or sha256_hex(data) != entry.sha256:
        raise DataError(
            f"{path} does not match its manifest ({len(data)} bytes, {entry.bytes} expected, or another digest); "
            "delete the file and run the sweep again."
        )
    wanted = None if keys is None else [("key", "in", sorted(keys))]
    names = None if columns is None else list(columns)
    table = pq.read_table(pa.BufferReader(data), columns=names, filters=wanted, page_checksum_verification=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def condition_entries(folder: Path) -> dict[str, FileEntry]:
    """Chunk name -> manifest entry of the chunks whose files are still there, oldest first."""
    return {name: entry for name, entry in sorted(read_manifest(folder).items()) if (folder / name).exists()}


def staged_keys(folder: Path, entries: Mapping[str, FileEntry]) -> dict[str, str]:
    """Key -> name of the chunk that holds its condition; failed ones are left out."""
    rows = (
        (name, row)
        for name in entries
        for row in read_conditions(folder / name, entries[name], columns=("key", "error"))
    )
    return {row["key"]: name for name, row in rows if row["error"] is None}


def condition_problems(folder: Path) -> dict[Path, str]:
    """File -> what is wrong with it, of one encoder's folder."""
    try:
        files = read_manifest(folder)
    except DataError as error:
        return {folder / MANIFEST: str(error)}
    found = {}
    for name, entry in files.items():
        try:
            read_conditions(folder / name, entry, columns=("key",))
        except DataError as error:
            found[folder / name] = str(error)
    for path in sorted(folder.glob("*.parquet")):
        if path.name not in files:
            found[path] = f"{path} is not in the manifest: its run was stopped; the next run encodes its prompts again."
    return found
