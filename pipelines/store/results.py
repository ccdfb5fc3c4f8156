"""Finished sweeps as rows for tables and images for galleries. Reads the store only; computes no statistics."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dashboards.rows import CellRow, Picture
from mulosd.errors import DataError, unknown_name
from mulosd.types import COUNTERS, FORWARD_COUNTERS
from pipelines.store.layout import Store
from pipelines.store.scores import read_metrics


def collect(
    store: Store | str | Path,
    sweep_key: str | None = None,
    *,
    cells: Collection[str] | None = None,
    unfinished: bool = False,
) -> list[CellRow]:
    """The rows of a sweep, in its order; without a key the sweep that finished last. cells: only those with these keys.
    unfinished: of a run that has not finished (or another one after it) the cells that it has decoded so far.

    A failed image has no counters and no scores; the metrics say how many are missing. DataError when nothing ran here.
    """
    opened = store if isinstance(store, Store) else Store.existing(store)
    key = resolve_sweep(opened, sweep_key, unfinished=unfinished)
    record = opened.read_latest(key) if unfinished else opened.read_sweep(key)
    bench = latest_bench(opened, key)
    chosen = [cell for cell in record["cells"] if cells is None or cell["cell_key"] in cells]
    return [_cell_row(opened, record, cell, bench) for cell in chosen]


def resolve_sweep(store: Store, sweep_key: str | None, *, unfinished: bool = False) -> str:
    """`sweep_key` when it is known here, or the key of the sweep that finished last; see `Store.sweep_keys`."""
    keys = store.sweep_keys(unfinished=unfinished)
    if not keys:
        raise DataError(f"{store.root} holds no finished sweep; run `mulosd run SWEEP.yaml --out {store.root}` first.")
    if sweep_key is None:
        return keys[-1]
    if sweep_key not in keys:
        raise unknown_name("sweep key", sweep_key, keys, str(store.root))
    return sweep_key


def pictures(
    store: Store | str | Path, cell_key: str, limit: int | None = None, *, sample_ids: Collection[str] | None = None
) -> list[Picture]:
    """The first `limit` decoded images of a cell with status maps and forward counts; failed ones are left out.

    sample_ids: only these, in the order of the cell, whose chunks are read until all were met.
    """
    from mulosd.stage.read import image_array, iter_cell, status_array

    opened = store if isinstance(store, Store) else Store.existing(store)
    found: list[Picture] = []
    awaited = None if sample_ids is None else set(sample_ids)
    if not opened.cell_dir(cell_key).is_dir():
        raise DataError(f"{opened.root} holds no cell {cell_key}; `mulosd plan` lists the keys of a sweep.")
    for rows in iter_cell(opened.cell_dir(cell_key)):
        for row in rows:
            if awaited is not None:
                if row["sample_id"] not in awaited:
                    continue
                awaited.remove(row["sample_id"])
            image, status = image_array(row), status_array(row)
            if image is not None and status is not None:
                found.append(Picture(row["sample_id"], row["prompt"], image, status, _forwards(row)))
            if len(found) == limit:
                return found
        if awaited is not None and not awaited:
            break
    return found


def latest_bench(store: Store, sweep_key: str) -> dict[str, Any] | None:
    """The content of the newest bench run of a sweep, None when it was never benched."""
    from mulosd.files.publish import read_json

    runs = [read_json(path) for path in sorted((store.root / "bench").glob("*/bench.json"))]
    mine = [run for run in runs if run["sweep_key"] == sweep_key]
    return max(mine, key=lambda run: run["finished_at"], default=None)


def _cell_row(
    store: Store, record: Mapping[str, Any], cell: Mapping[str, Any], bench: Mapping[str, Any] | None
) -> CellRow:
    key = cell["cell_key"]
    folder = store.cell_dir(key) / "scores"
    metrics: dict[str, dict[str, Any]] = {}
    for score_folder, digest in record["scores"].get(key, {}).values():
        metrics |= read_metrics(folder / score_folder, digest)
    height, width = store.read_cell(key)["grid"]
    return CellRow(
        cell_key=key,
        target=cell["target"],
        method=cell["method"],
        knobs=dict(cell["knobs"]),
        n_target_tokens=height * width,
        metrics=metrics,
        counters=_counters(store, key, record["wanted"]),
        latency=dict(bench["cells"].get(key, {})) if bench else {},
        versions=_versions(store, key, record["wanted"]),
    )


def _versions(store: Store, cell_key: str, wanted: list[list[int]]) -> tuple[str, ...]:
    """Versions of the code that made the images of a cell; () where no chunk says any, as in stores of 0.1.0."""
    from mulosd.stage.read import versions_of
    from mulosd.stage.schema import UNKNOWN_VERSION

    found = [versions_of(store.chunk_path(cell_key, index)) for index, _ in wanted]
    if not any(found):
        return ()
    return tuple(dict.fromkeys(version for versions in found for version in versions or (UNKNOWN_VERSION,)))


def _counters(store: Store, cell_key: str, wanted: list[list[int]]) -> dict[str, dict[str, float]]:
    counters: dict[str, dict[str, float]] = {name: {} for name in COUNTERS}
    for row in _wanted_rows(store, cell_key, wanted, ("sample_id", "error", *COUNTERS)):
        if row["error"] is None:
            for name in COUNTERS:
                counters[name][row["sample_id"]] = row[name]
    return counters


def _wanted_rows(
    store: Store, cell_key: str, wanted: list[list[int]], columns: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    from mulosd.stage.read import check_unique, read_rows

    seen: set[str] = set()
    for index, num in wanted:
        path = store.chunk_path(cell_key, index)
        rows = read_rows(path, columns=columns)[:num]
        check_unique(rows, seen, path)
        yield from rows


def _forwards(row: Mapping[str, Any]) -> int:
    return sum(int(row[name]) for name in FORWARD_COUNTERS)
