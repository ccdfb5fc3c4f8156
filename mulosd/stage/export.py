"""Export staged cells as a folder for `datasets.load_from_disk`."""

from collections.abc import Sequence
from pathlib import Path

from mulosd.errors import ConfigError, DataError
from mulosd.stage.manifest import read_manifest
from mulosd.stage.verify import check_entry


def export_dataset(cell_dirs: Sequence[Path], out: Path) -> int:
    """Write the rows of the cells, with a `cell_key` column in front, to the new folder `out`; returns the rows.

    `out` appears whole or not at all. ConfigError when it exists already.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    if out.exists():
        raise ConfigError(f"{out} exists already; choose a new folder for the export.")
    tables = []
    for cell_dir in cell_dirs:
        for name, entry in sorted(read_manifest(cell_dir).items()):
            data = check_entry(cell_dir / "images" / name, entry)
            table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
            features = datasets.Features.from_arrow_schema(table.schema)
            dataset = datasets.Dataset(table).cast(features)
            tables.append(dataset.add_column("cell_key", [cell_dir.name] * len(dataset)))
    if not tables:
        raise DataError("there is nothing to export: the cells hold no finished chunk; run the sweep first.")
    joined = datasets.concatenate_datasets(tables)
    temp = out.with_name(f".{out.name}.tmp")
    joined.save_to_disk(str(temp))
    temp.rename(out)
    return len(joined)
