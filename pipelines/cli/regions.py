"""`mulosd regions`: where the cells of a sweep rejected and resampled their drafts. Heavy imports stay inside."""

from pathlib import Path

import click


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
