"""Export staged cells as a folder for `datasets.load_from_disk`."""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError
from mulosd.files.folders import refuse_package
from mulosd.stage.manifest import read_manifest
from mulosd.stage.verify import check_entry


def export_dataset(cell_dirs: Sequence[Path], out: Path) -> int:
    """Write the rows of the cells, with a `cell_key` column in front, to the new folder `out`; returns the rows.

    `out` appears whole or not at all. ConfigError when it exists already, DataError for a damaged chunk or a sample
    that a cell holds twice.
    """
    import datasets

    tables = []
    for cell_dir, table in _tables(cell_dirs, out):
        dataset = datasets.Dataset(table).cast(datasets.Features.from_arrow_schema(table.schema))
        tables.append(dataset.add_column("cell_key", [cell_dir.name] * len(dataset)))
    joined = datasets.concatenate_datasets(tables)
    temp = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        joined.save_to_disk(str(temp))
        temp.rename(out)
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise
    return len(joined)


def check_export(cell_dirs: Sequence[Path], out: Path) -> int:
    """The number of rows that `export_dataset` would write; raises what it would raise before it writes."""
    return sum(table.num_rows for _, table in _tables(cell_dirs, out))


def _tables(cell_dirs: Sequence[Path], out: Path) -> Iterator[tuple[Path, Any]]:
    """(cell folder, checked table) of every chunk, in today's format."""
    from mulosd.stage.read import check_unique, table_of

    refuse_package(out)
    if out.exists():
        raise ConfigError(f"{out} exists already; choose a new folder for the export.")
    is_empty = True
    for cell_dir in cell_dirs:
        seen: set[str] = set()
        for name, entry in sorted(read_manifest(cell_dir).items()):
            path = cell_dir / "images" / name
            table = table_of(check_entry(path, entry), path)
            check_unique(table.select(["sample_id"]).to_pylist(), seen, path)
            is_empty = False
            yield cell_dir, table
    if is_empty:
        raise DataError("there is nothing to export: the cells hold no finished chunk; run the sweep first.")
