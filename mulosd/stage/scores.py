"""Scores sample by sample, as Parquet: one row per sample and metric; and tables of plain rows as Parquet or CSV.

value is null for a sample that has no score, and `reason` says why; question: where a score is that of one question of
the sample.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from mulosd.files.publish import publish_bytes, sha256_hex

TEXT = ("metric", "sample_id", "question", "reason")
SCHEMA = pa.schema([*((name, pa.string()) for name in TEXT), ("value", pa.float64())])


def publish_scores(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Publish rows of SCHEMA as the file `path`; its sha256."""
    data = _parquet(pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA))
    publish_bytes(path, data)
    return sha256_hex(data)


def scores_in(data: bytes) -> list[dict[str, Any]]:
    """The rows in the content of such a file."""
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def publish_rows(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Publish columns of equal length as `path`, .csv or .parquet; null where None. A column of mixed kinds is text."""
    table = pa.table({name: _array(values) for name, values in columns.items()})
    if path.suffix != ".csv":
        publish_bytes(path, _parquet(table))
        return
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink)
    publish_bytes(path, bytes(sink.getvalue()))


def _array(values: Sequence[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) <= 1 and kinds <= {int, float, bool, str}:
        return pa.array(values, pa.string() if kinds <= {str} else None)
    return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())
