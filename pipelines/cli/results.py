"""Commands that show what a store holds: table, compare, gallery, regions."""

from pathlib import Path
from typing import Any

import click

from mulosd.errors import ConfigError

FORMATS = ("md", "csv", "tex")


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--store", type=click.Path(path_type=Path), help="Store in which labels and keys are looked up.")
@click.option("--sweep-key", help="Look only in this sweep of the store (default: the newest that has it).")
@click.option("--metric", help="Metric that sorts the largest changes (default: geneval/overall, else detail).")
@click.option("--prompts", type=click.IntRange(1), default=6, show_default=True, help="Changed prompts to show.")
@click.option("--format", "form", type=click.Choice(["md", "json"]), default="md", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for text and contact sheet (default: in A's store)."
)
def compare(a: str, b: str, store: Path | None, sweep_key: str | None, out: Path | None, **options: Any) -> None:
    """Compare A with B: two cells by label or key prefix, two sweeps, or two stores.

    A cell is named by its label ("mulosd tau=0.2") or key prefix in --store, by DIR:LABEL, or by its folder.
    """
    from dashboards.pair import pair_json, pair_markdown
    from pipelines.compare.pair_inputs import find_sides, matched
    from pipelines.compare.pairwise import compare_pair, write_pair

    form = {"md": pair_markdown, "json": pair_json}[options["form"]]
    sides = [find_sides(name, store=store, sweep_key=sweep_key) for name in (a, b)]
    pairs = matched(*sides)
    for left, right in pairs:
        pair = compare_pair(left, right, metric=options["metric"], changes=options["prompts"])
        name = f"{left.row.cell_key}-{right.row.cell_key}"
        folder = out if out and len(pairs) == 1 else (out or left.store.root / "compare") / name
        written = write_pair(left, right, pair, folder)
        click.echo(form(pair), nl=False)
        click.echo("\n".join(map(str, written)), err=options["form"] == "json")


@click.command()
@click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File to write, .parquet or .csv.")
@click.option("--sweep-key", help="Which sweep of the store (default: the last one).")
@click.option("--dry-run", is_flag=True, help="Read and check the scores; write nothing.")
def export(store: Path, out: Path, sweep_key: str | None, dry_run: bool) -> None:
    """Write the scores of a sweep as one long table: a row per cell, metric and sample, with method and knobs."""
    from pipelines.store.layout import Store
    from pipelines.store.long_table import export_scores

    rows, columns = export_scores(Store.existing(store), out, sweep_key, dry_run=dry_run)
    click.echo(f"{'would write' if dry_run else 'wrote'} {rows:,} rows of {columns} columns: {out}")


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="md", show_default=True)
@click.option("--sweep-key", help="Which sweep (default: the last one).")
@click.option(
    "--from",
    "origin",
    default="store",
    show_default=True,
    metavar="store|mlflow|URI",
    help="Read the store DIR, the MLflow database of DIR, or any tracking URI.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="PNG file to write: quality over forwards.")
def table(source: Path | None, form: str, sweep_key: str | None, origin: str, plot: Path | None) -> None:
    """Print the table of a sweep, from the store DIR or from MLflow: the numbers are the same."""
    from dashboards.render import render
    from pipelines.compare.report import read_results, results_table, write_plot
    from pipelines.store.layout import Store

    if origin in ("store", "mlflow") and source is None:
        raise ConfigError("name the folder: `mulosd table DIR`, or `mulosd table --from URI` for a tracking server.")
    if origin == "store":
        assert source is not None
        results = read_results(Store.existing(source), sweep_key)
    else:
        from pipelines.tracking.mlflow_rows import results_from_mlflow
        from pipelines.tracking.tracking_uri import default_uri

        if origin != "mlflow" and "://" not in origin:
            raise ConfigError(
                f"--from {origin} is not allowed; give store, mlflow or a tracking URI such as http://..."
            )
        if origin == "mlflow":
            assert source is not None
            origin = default_uri(source)
        results = results_from_mlflow(origin, sweep_key)
    shown = results_table(results)
    click.echo(render(shown, form), nl=False)
    if plot:
        click.echo(write_plot(plot, shown), err=True)


@click.command()
@click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="PNG file to write.")
@click.option("--sweep-key", help="Which sweep of the store (default: the last one).")
@click.option("--prompts", type=click.IntRange(1), default=6, show_default=True)
@click.option("--cell", "cells", multiple=True, help="Key of a cell to show (default: the first seven).")
def gallery(store: Path, out: Path, sweep_key: str | None, prompts: int, cells: tuple[str, ...]) -> None:
    """Draw the contact sheet of a sweep: prompts down, methods across, status maps beside."""
    from pipelines.compare.report import write_sheet
    from pipelines.store.layout import Store

    click.echo(write_sheet(Store.existing(store), out, sweep_key=sweep_key, prompts=prompts, cells=cells))


@click.command()
@click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--sweep-key", help="Which sweep of the store (default: the last one).")
@click.option("--cell", "cells", multiple=True, help="Key of a mulosd cell (default: all).")
@click.option("--out", type=click.Path(path_type=Path), help="PNG file to write: mean maps and rates by region.")
def regions(store: Path, sweep_key: str | None, cells: tuple[str, ...], out: Path | None) -> None:
    """Print how much of objects, edges and background each mulosd cell of a scenes sweep rejected and resampled."""
    from dashboards.regions import regions_markdown, save_region_maps
    from pipelines.compare.regions import sweep_regions
    from pipelines.store.layout import Store
    from pipelines.store.results import resolve_sweep

    opened = Store.existing(store)
    key = resolve_sweep(opened, sweep_key)
    found = sweep_regions(opened, key, cells=cells)
    click.echo(regions_markdown(found), nl=False)
    if out:
        click.echo(save_region_maps(out, found, title=str(opened.read_sweep(key)["name"])), err=True)
