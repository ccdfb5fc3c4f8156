"""Commands for the files of released models: convert, fetch, doctor. `register` adds them to the command line."""

from pathlib import Path

import click

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("source", metavar="SRC", type=PATH)
@click.option("--family", required=True, help="A released family, e.g. llamagen-xl, or a family file (.json).")
@click.option("--part", required=True, help="Which part of the family SRC is, e.g. model-512 or vq.")
@click.option("--out", type=PATH, help="Folder of the family (default: FAMILY in the weights folder).")
@click.option("--dry-run", is_flag=True, help="Read and check SRC; write nothing.")
def convert(source: Path, family: str, part: str, out: Path | None, dry_run: bool) -> None:
    """Turn the checkpoint SRC (.pt, .pth, safetensors or a folder) into a part of FAMILY. Runs no code of SRC."""
    from mulosd.models.convert import convert as convert_part

    done = convert_part(source, family=family, part=part, out=out, is_dry=dry_run)
    if done.dropped:
        more = f" and {len(done.dropped) - 3} more" if len(done.dropped) > 3 else ""
        click.echo(f"left out, as no model uses them: {', '.join(done.dropped[:3])}{more}")
    entry = done.entry
    click.echo(
        f"{done.path}: {entry['num_params']:,} {entry['dtype']} values, {'not written' if dry_run else 'in the card'}"
    )


def register(cli: click.Group) -> None:
    """Add these commands to `cli`."""
    for command in (convert,):
        cli.add_command(command)
