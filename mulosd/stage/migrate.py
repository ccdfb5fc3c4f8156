"""Chunks of older formats, read as today's. A file is never rewritten for it: readers upgrade what they have read.

    version 0   no `batch_images`, and `latency_s` in every row
    version 1   `batch_images` (null where version 0 did not say); latency only in bench runs
    version 2   `chosen_taus` (null where version 1 did not say)
    version 3   `prompt_tokens`, `prompt_unknown`, `prompt_cut` (null where version 2 did not say)

A cell's key holds `manifest.KEY_SCHEMA`: a run continues cells of version 1 on with today's chunks. Version 0 can be
read, verified, exported and compared.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from mulosd.errors import DataError
from mulosd.stage.manifest import SCHEMA_VERSION
from mulosd.stage.schema import COLUMNS, arrow_schema


def _without_latency(table: pa.Table) -> pa.Table:
    table = table.drop_columns(["latency_s"]) if "latency_s" in table.column_names else table
    return table.append_column("batch_images", pa.nulls(table.num_rows, pa.int32()))


def _with_chosen_taus(table: pa.Table) -> pa.Table:
    return table.append_column("chosen_taus", pa.nulls(table.num_rows, pa.list_(pa.float64())))


def _with_prompt_tokens(table: pa.Table) -> pa.Table:
    for name in ("prompt_tokens", "prompt_unknown", "prompt_cut"):
        table = table.append_column(name, pa.nulls(table.num_rows, pa.int32()))
    return table


MIGRATIONS: dict[int, Callable[[pa.Table], pa.Table]] = {
    0: _without_latency,
    1: _with_chosen_taus,
    2: _with_prompt_tokens,
}


def version_of(schema: pa.Schema, path: Path) -> int:
    """The format version of a chunk; DataError for a file that is not a chunk or comes from a newer program."""
    found = (schema.metadata or {}).get(b"mulosd.schema")
    text = "none" if found is None else found.decode("utf-8", "replace")
    if not text.isdigit() or not min(MIGRATIONS) <= int(text) <= SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {text}, this program reads {min(MIGRATIONS)} to {SCHEMA_VERSION}; "
            "use the program that wrote it or another --out folder."
        )
    return int(text)


def upgrade(table: pa.Table, version: int) -> pa.Table:
    """`table` of format `version` with today's columns, in today's order and types."""
    for step in range(version, SCHEMA_VERSION):
        table = MIGRATIONS[step](table)
    return table.select(list(COLUMNS)).cast(arrow_schema())
