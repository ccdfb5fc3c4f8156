"""How long MLflow takes for a sweep of many cells: logging it, saying it again, and the queries of a user.

    python bench/tracking.py --cells 10000

Rows are synthetic (no images, 12 metrics with intervals); outbox, writer and SQLite file are the real ones, in a
temporary folder. Only `--logged` cells are logged, before and after the database was filled up with copies of them.
"""

import argparse
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dashboards.rows import CellRow
from pipelines.host.provenance import processor_name
from pipelines.tracking.track import SweepMeta, track_sweep

SWEEP_KEY = "bench"
DATASET = {"name": "scenes/val", "digest": "0123456789abcdef", "source": {"name": "scenes"}, "num_prompts": 48}


def row(index: int) -> CellRow:
    """A cell with its own tau."""
    value = index / 1e6
    metric = {"value": value, "interval": [value - 0.01, value + 0.01], "n": 48, "direction": "higher"}
    names = ["detail", "fd_effnet", *(f"geneval/{i}" for i in range(10))]
    knobs = {"tau": round(1e-5 * (index + 1), 5)}
    counters = {"forwards_verify": {f"scenes/{i}/0": 8.0 for i in range(8)}}
    return CellRow(
        f"cell{index:06d}", "tiny-mid", "mulosd", knobs, 256, {name: dict(metric) for name in names}, counters
    )


def timed(what: str, call: Callable[[], Any]) -> Any:
    """Run and print wall and processor seconds."""
    start, cpu = time.monotonic(), time.process_time()
    result = call()
    print(f"| {what} | {time.monotonic() - start:.2f} s | {time.process_time() - cpu:.2f} s |", flush=True)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000, help="cells in the database when it is queried")
    parser.add_argument("--logged", type=int, default=200, help="cells that are really logged, twice")
    options = parser.parse_args()
    logged = options.logged
    load = os.getloadavg()[0]
    print(f"{options.cells} cells; {os.cpu_count()} × {processor_name() or platform.machine()}, load {load:.1f}\n")
    print("| what | wall | processor |\n|:--|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)

        def track(sweep_key: str, rows: list[CellRow]) -> Any:
            meta = SweepMeta(sweep_key, "bench", {"mulosd.sweep": "bench"}, dataset=DATASET)
            return track_sweep(rows, meta, store_dir=store)

        timed("load MLflow, make the database", lambda: track("first", [row(0)]))
        tracked = timed(f"log {logged} cells", lambda: track(SWEEP_KEY, [row(i) for i in range(logged)]))
        assert tracked.written == logged
        copies = max(0, options.cells // logged - 1)
        num = _multiply(store / "mlflow.db", copies)
        print(f"| (copied to {num} runs) | | |")
        again = timed(f"log {logged} more cells", lambda: track("more", [row(i) for i in range(logged)]))
        assert again.written == logged
        assert timed("the same sweep again", lambda: track("more", [row(i) for i in range(logged)])).written == 0
        _query(tracked.tracking_uri, num + logged + 1)
        print(f"| mlflow.db: {(store / 'mlflow.db').stat().st_size / 2**20:.0f} MiB | | |")


def _multiply(database: Path, copies: int) -> int:
    """Copy the runs of the sweep inside the database under new ids; returns how many runs there are."""
    mine = f"SELECT run_uuid FROM tags WHERE key = 'mulosd.sweep_key' AND value = '{SWEEP_KEY}'"
    with closing(sqlite3.connect(database)) as connection, connection:
        ids = [run_id for (run_id,) in connection.execute(mine).fetchall()]
        for table, column in COPIED.items():
            names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            marks = ",".join("?" * len(ids))
            rows = connection.execute(f"SELECT {','.join(names)} FROM {table} WHERE {column} IN ({marks})", ids)
            lines = rows.fetchall()
            insert = f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})"
            for copy in range(copies):
                connection.executemany(insert, [_renamed(names, line, copy) for line in lines])
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


COPIED = {"runs": "run_uuid", "params": "run_uuid", "tags": "run_uuid", "metrics": "run_uuid"}
COPIED |= {"latest_metrics": "run_uuid", "inputs": "destination_id"}


def _renamed(names: list[str], line: tuple[Any, ...], copy: int) -> tuple[Any, ...]:
    """The line of a table for copy number `copy`."""
    values = dict(zip(names, line, strict=True))
    for name in ("run_uuid", "destination_id", "input_uuid"):
        if name in values:
            values[name] = f"{values[name][:26]}{copy:06d}"
    if values.get("key") == "mulosd.cell_key":
        values["value"] = f"copy{copy:06d}-{values['value']}"
    return tuple(values.values())


def _query(uri: str, num: int) -> None:
    """What a user does in the UI or from Python."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mulosd").experiment_id

    def search(text: str, limit: int = 1000) -> list[Any]:
        return list(client.search_runs([experiment], filter_string=text, max_results=limit))

    def every() -> int:
        count, token = 0, None
        while True:
            page = client.search_runs([experiment], max_results=1000, page_token=token)
            count, token = count + len(page), page.token
            if not token:
                return count

    assert len(timed("first page of the UI (100 runs)", lambda: search("", 100))) == 100
    assert timed("one cell by its key", lambda: search("tags.`mulosd.cell_key` = 'copy000000-cell000001'"))
    assert timed("cells with one tau, first 100", lambda: search("params.tau = '2e-05'", 100))
    assert timed("cells above a metric, first 100", lambda: search("metrics.detail > 0.0001", 100))
    assert timed("all runs, page by page", every) >= num


if __name__ == "__main__":
    main()
