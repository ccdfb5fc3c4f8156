"""Commands for the card of a family: measure, card."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("family", type=click.Choice(["tiny"]))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Store; the same command continues there.")
@click.option("--family-folder", type=click.Path(path_type=Path), help="Folder of the card (default: the shipped one).")
@click.option("--count", type=click.IntRange(1), default=900, show_default=True, help="Test prompts.")
@click.option(
    "--scan-count", type=click.IntRange(1), default=120, show_default=True, help="Prompts per guidance tried."
)
@click.option("--large-count", type=click.IntRange(1), help="At most this many prompts for targets of 1,024 tokens.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--dry-run", is_flag=True, help="Say what it would cost; write nothing.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def measure(family: str, out: Path, family_folder: Path | None, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Measure a trained FAMILY for its card: reconstructions, guidance, quality, the gate. Fills the card."""
    from mulosd.families.card import family_folder as shipped
    from pipelines.card.measure import Measurement, estimate
    from pipelines.card.measure import measure as measure_family
    from pipelines.cli.bars import progress_shown

    what = Measurement(family_folder or shipped(family), out, **options)
    if dry_run:
        for line in estimate(what):
            click.echo(line)
        return
    gate = measure_family(what, progress=lambda: progress_shown(disable=quiet))["gate"]
    for name, verdict in gate.items():
        if name != "passed":
            click.echo(f"{'passed' if verdict['passed'] else 'FAILED'}  {name}: {verdict['rule']}")
    click.echo(f"{what.card_file} filled; `mulosd card {family} --family-folder {what.card_file.parent}` shows it")


@click.command()
@click.argument("family", type=click.Choice(["tiny"]))
@click.option("--family-folder", type=click.Path(path_type=Path), help="Folder of the card (default: the shipped one).")
def card(family: str, family_folder: Path | None) -> None:
    """Print the card of FAMILY as a Markdown page."""
    from dashboards.card import card_markdown
    from mulosd.families.card import family_folder as shipped
    from mulosd.families.card import read_family

    click.echo(card_markdown(read_family(family_folder or shipped(family))), nl=False)
