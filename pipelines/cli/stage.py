"""`mulosd stage verify|repair|export|prune`: look after the staged images of a store."""

from pathlib import Path

import click

STORE = click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group()
def stage() -> None:
    """Verify, repair, export or prune staged images."""


@stage.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def verify(folder: Path) -> None:
    """Check every file of a store, or of one cell, against its manifest, and name cells that no run continues."""
    from mulosd.errors import DataError
    from mulosd.stage.verify import mixed_versions, verify_store
    from pipelines.store.upkeep import refused_cells

    damaged, refused = list(verify_store(folder)), list(refused_cells(folder))
    for line in mixed_versions(folder):
        click.echo(line)
    for problem in (*damaged, *refused):
        click.echo(problem)
    if damaged:
        raise DataError(
            f"{folder}: {len(damaged) + len(refused)} problem(s); `mulosd stage repair` moves what is damaged away."
        )
    if refused:
        raise DataError(f"{folder}: no run continues {len(refused)} cell(s); keep them to read, or delete them.")
    click.echo(f"{folder}: every chunk matches its manifest")


@stage.command()
@STORE
@DRY_RUN
def repair(store: Path, dry_run: bool) -> None:
    """Move damaged files of the store DIR to quarantine/, so that the next run makes them again."""
    from pipelines.store.layout import Store
    from pipelines.store.upkeep import repair_store

    actions = list(repair_store(Store.existing(store), dry_run=dry_run))
    for action in actions:
        click.echo(action)
    if not actions:
        click.echo(f"{store}: nothing to repair")
    elif dry_run:
        click.echo("nothing was changed (--dry-run)")
    else:
        click.echo(f"{store}: now run the sweep again")


@stage.command()
@STORE
@click.option("--unused", is_flag=True, help="Also cells and scores that no finished sweep of DIR names.")
@DRY_RUN
def prune(store: Path, unused: bool, dry_run: bool) -> None:
    """Remove temp files of killed runs and quarantined files from the store DIR.

    With --unused the work of an interrupted sweep goes too: finish it first, or look with --dry-run.
    """
    from mulosd.stage.prune import Removable
    from pipelines.store.layout import Store
    from pipelines.store.upkeep import prune_store

    freed = 0
    for item in prune_store(Store.existing(store), unused=unused, dry_run=dry_run):
        click.echo(item)
        freed += item.bytes if isinstance(item, Removable) else 0
    click.echo(f"{store}: {freed / 2**20:.1f} MiB {'could be freed (--dry-run)' if dry_run else 'freed'}")


@stage.command()
@STORE
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New folder to write.")
@click.option("--cell", "cells", multiple=True, help="Key of a cell to export (default: all).")
@DRY_RUN
def export(store: Path, out: Path, cells: tuple[str, ...], dry_run: bool) -> None:
    """Write staged images as a folder for `datasets.load_from_disk`."""
    from pipelines.store.layout import Store
    from pipelines.store.upkeep import export_cells

    rows, size = export_cells(Store.existing(store), out, cells, dry_run=dry_run)
    what = "would write" if dry_run else "wrote"
    click.echo(f"{out}: {what} {rows} rows ({size / 2**20:.1f} MiB of chunks)")
