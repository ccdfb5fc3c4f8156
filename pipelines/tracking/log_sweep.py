"""Log one sweep of a store and its report to MLflow, when it has finished and while it runs."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.compare.cell_rows import FILE_NAME, SweepResults, encode
from pipelines.compare.report import read_results, unfinished_note
from pipelines.store.layout import Store
from pipelines.store.results import resolve_sweep

if TYPE_CHECKING:
    from pipelines.tracking.track import NotLogged, SweepMeta, Tracked

log = logging.getLogger(__name__)

EVERY_S = 60.0  # between two loggings of a sweep that runs


def log_while_running(
    store: Store,
    *,
    tracking_uri: str | None = None,
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[str], None]:
    """A callback for `run_sweep` that logs the cells finished so far, at most every `every_s` seconds.

    Whatever goes wrong does not end the run: it is said, and logging waits for the end of the run.
    """
    last = clock()
    is_on = True

    def log_cells(sweep_key: str) -> None:
        nonlocal last, is_on
        if not is_on or clock() - last < every_s:
            return
        try:
            is_on = track(store, sweep_key, tracking_uri=tracking_uri)
        except Exception:
            log.exception("sweep %s was not logged while it runs; it is logged when it has finished", sweep_key)
            is_on = False
        last = clock()

    return log_cells


def track(store: Store, sweep_key: str | None = None, *, tracking_uri: str | None = None) -> bool:
    """Log a sweep and its report to MLflow; False, with a warning, where that failed."""
    from pipelines.tracking.track import track_sweep

    results, meta = _to_log(store, sweep_key)
    return track_sweep(results.rows, meta, store_dir=store.root, tracking_uri=tracking_uri) is not None


def track_again(store: Store, sweep_key: str, *, tracking_uri: str | None = None) -> "Tracked | NotLogged":
    """Log what MLflow lacks of a sweep, asking it about each run: one that was deleted there is made again."""
    from pipelines.tracking.track import log_sweep

    results, meta = _to_log(store, sweep_key)
    return log_sweep(results.rows, meta, store_dir=store.root, tracking_uri=tracking_uri, every=True)


def _to_log(store: Store, sweep_key: str | None) -> "tuple[SweepResults, SweepMeta]":
    from mulosd.files.publish import publish_bytes
    from pipelines.tracking.sweep_facts import cell_facts, dataset_of, facts_of
    from pipelines.tracking.track import SweepMeta

    key = resolve_sweep(store, sweep_key, unfinished=True)
    folder, record = store.sweep_dir(key), store.read_latest(key)
    results = read_results(store, key)
    publish_bytes(folder / FILE_NAME, encode(results))  # `mulosd table --from mlflow` reads it
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("table.*"))}
    meta = SweepMeta(
        sweep_key=key,
        name=record["name"],
        facts=facts_of(record),
        cell_facts={
            row.cell_key: cell_facts(record, store.read_cell(row.cell_key)["record"], row.versions)
            for row in results.rows
        },
        texts=texts,
        files=(*sorted(folder.glob("*.png")), folder / FILE_NAME),
        note=unfinished_note(record) if "num_cells" in record else texts.get("table.md", ""),
        dataset=dataset_of(store, record),
    )
    return results, meta
