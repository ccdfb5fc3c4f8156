"""What a finished sweep leaves to look at: its table, plot and contact sheet in the store, and its runs in MLflow."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.rows import CellRow, Picture
from dashboards.table import Table, build_table, ordered
from mulosd.errors import DataError
from pipelines.compare.cell_rows import FILE_NAME, SweepResults, encode
from pipelines.host.provenance import code_version
from pipelines.store.layout import Store
from pipelines.store.results import collect, latest_bench, pictures, resolve_sweep

log = logging.getLogger(__name__)

UNKNOWN = "unknown code"
SHEET_PROMPTS = 6
SHEET_COLUMNS = 7  # more would not fit a screen; `mulosd gallery --cell` chooses others


@dataclass(frozen=True)
class Report:
    """The table and the files that show it."""

    table: Table
    table_file: Path
    sheet: Path
    plot: Path | None


def read_results(store: Store, sweep_key: str | None = None) -> SweepResults:
    """The results of a sweep of the store, of the one that finished or began last without a key.

    While it runs, and after a stop, they are those of the cells decoded so far; a note says how many.
    """
    key = resolve_sweep(store, sweep_key, unfinished=True)
    record, bench = store.read_latest(key), latest_bench(store, key)
    rows = tuple(collect(store, key, unfinished=True))
    notes = [latency_note(bench)] if bench else []
    if "num_cells" in record:
        notes.insert(0, unfinished_note(record))
    if code := code_note(rows):
        notes.append(code)
    return SweepResults(key, str(record["name"]), rows, tuple(notes))


def results_table(results: SweepResults) -> Table:
    """The table of results, wherever they were read from."""
    from pipelines.compare.compare import compare

    targets = list(dict.fromkeys(row.target for row in results.rows))
    title = f"{results.name} · {targets[0]}" if len(targets) == 1 else results.name
    return build_table(results.rows, compare(results.rows), title=title, notes=results.notes)


def write_report(store: Store, sweep_key: str | None = None) -> Report:
    """Publish table.md, table.csv, table.tex, rows.json, contact_sheet.png and quality.png in the sweep's folder."""
    from dashboards.render import WRITERS, render
    from mulosd.files.publish import publish_bytes

    key = resolve_sweep(store, sweep_key)
    results = read_results(store, key)
    table = results_table(results)
    folder = store.sweep_dir(key)
    publish_bytes(folder / FILE_NAME, encode(results))
    for form in WRITERS:
        publish_bytes(folder / f"table.{form}", render(table, form).encode("utf-8"))
    sheet = write_sheet(store, folder / "contact_sheet.png", sweep_key=key)
    plot: Path | None = None
    try:
        plot = write_plot(folder / "quality.png", table)
    except DataError as error:
        log.info("no plot: %s", error)  # a sweep without GenEval scores has a table all the same
    return Report(table, folder / "table.md", sheet, plot)


def write_plot(path: Path, table: Table) -> Path:
    """Publish the quality plot of a table; DataError where it holds nothing to draw."""
    from dashboards.plots import save_quality_plot
    from mulosd.methods import all_knobs

    methods = {row.label.partition(" ")[0] for row in table.rows}
    return save_quality_plot(path, table, defaults={name: all_knobs(name, {}) for name in methods})


def write_sheet(
    store: Store,
    path: Path,
    *,
    sweep_key: str | None = None,
    prompts: int = SHEET_PROMPTS,
    cells: tuple[str, ...] = (),
) -> Path:
    """Publish the contact sheet of a sweep: its first prompts by its first cells, or by the cells named by key."""
    from dashboards.gallery import save_contact_sheet

    key = resolve_sweep(store, sweep_key)
    rows = [row for row in ordered(collect(store, key)) if not cells or row.cell_key in cells]
    if unknown := sorted(set(cells) - {row.cell_key for row in rows}):
        raise DataError(f"cell {unknown[0]} is not part of sweep {key}; `mulosd plan` lists the keys.")
    has_targets = len({row.target for row in rows}) > 1
    columns: dict[str, list[Picture]] = {}
    for row in rows[: SHEET_COLUMNS if not cells else None]:
        label = f"{row.method}@{row.target} {row.label.partition(' ')[2]}" if has_targets else row.label
        columns[label.strip()] = pictures(store, row.cell_key, prompts)
    title = " · ".join([_name(store, key), *([rows[0].target] if not has_targets else [])])
    return save_contact_sheet(path, columns, title=title)


def unfinished_note(record: Mapping[str, Any]) -> str:
    """How far the run was that left this record."""
    decoded, scored = len(record["cells"]), len(record["scores"])
    return f"Unfinished: {decoded} of {record['num_cells']} cells are decoded, {scored} of them scored."


def code_note(rows: Sequence[CellRow]) -> str:
    """Which code made the images, "mixed" where it was not the same for all; "" for a store that does not say."""
    makers: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        makers.setdefault(row.versions or (UNKNOWN,), []).append(row.label)
    if set(makers) <= {(UNKNOWN,)}:
        return ""
    if len(makers) == 1 and len(next(iter(makers))) == 1:
        return f"Images by {next(iter(makers))[0]}."
    parts = (f"{' and '.join(versions)} ({', '.join(labels)})" for versions, labels in makers.items())
    return f"Mixed: the images were made by several versions of the code: {'; '.join(parts)}."


def latency_note(bench: Mapping[str, Any]) -> str:
    """Where the latencies of a table come from: they hold for this machine and this run only."""
    settings, load = bench["settings"], bench["record"]["machine"]["load_1min"]
    return (
        f"Latency: one bench run ({bench['run']}), batch 1, {settings['prompts']} prompts, "
        f"{settings['threads']} threads on {settings['device_name']}, load {load:.1f} at its start, "
        f"by {code_version(bench['record']) or UNKNOWN}; ratio of totals against ar."
    )


def _name(store: Store, key: str) -> str:
    return str(store.read_sweep(key)["name"])
