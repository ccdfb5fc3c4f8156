"""`mulosd generate --explain`: say what a method will do before any weight is loaded."""

from pathlib import Path
from typing import Any

import click


def explain_options(command: Any) -> Any:
    """--explain and --dry-run."""
    dry_run = click.option("--dry-run", is_flag=True, help="Check the settings; decode and write nothing.")
    explain = click.option("--explain", is_flag=True, help="First print the resolved schedule and its forwards.")
    return explain(dry_run(command))


def show(out: Path, *, explain: bool, **options: Any) -> None:
    """Check the settings of `generate` and, with `explain`, print the schedule."""
    from pipelines.cli.schedule_text import explain as explained
    from pipelines.cli.single import resolve

    request = {key: options[key] for key in ("target", "method", "knobs", "dtype")}
    method, card = resolve(out, ".png", **request)
    if explain:
        click.echo("\n".join(explained(method, card)))
