"""Commands for the files of released models: convert, fetch, doctor."""

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
    from mulosd.convert.part import convert as convert_part

    done = convert_part(source, family=family, part=part, out=out, is_dry=dry_run)
    if done.dropped:
        more = f" and {len(done.dropped) - 3} more" if len(done.dropped) > 3 else ""
        click.echo(f"left out, as no model uses them: {', '.join(done.dropped[:3])}{more}")
    entry = done.entry
    click.echo(
        f"{done.path}: {entry['num_params']:,} {entry['dtype']} values, {'not written' if dry_run else 'in the card'}"
    )


@click.command()
@click.argument("family")
@click.option("--part", "parts", multiple=True, help="Only this part (default: all).")
@click.option("--revision", "revisions", multiple=True, metavar="REPO=COMMIT", help="Commit of a repository.")
@click.option("--out", type=PATH, help="Folder for the files (default: `sources` in the weights folder).")
@click.option("--dry-run", is_flag=True, help="Ask the hub for commits and names; download nothing.")
def fetch(family: str, parts: tuple[str, ...], revisions: tuple[str, ...], out: Path | None, dry_run: bool) -> None:
    """Download the published files of FAMILY from the Hugging Face hub; the same command resumes."""
    from mulosd.convert.fetch import fetch as fetch_files
    from mulosd.errors import ConfigError

    wrong = next((text for text in revisions if not all(text.partition("="))), None)
    if wrong is not None:
        raise ConfigError(f"--revision {wrong!r} must have the form REPO=COMMIT, for instance csuhan/TA-Tok=0123abcd.")
    commits = {text.partition("=")[0]: text.partition("=")[2] for text in revisions}
    for done in fetch_files(family, parts=parts, revisions=commits, out=out, is_dry=dry_run):
        click.echo(f"{done.part}: {done.path} at commit {done.revision}\n  next: {done.command}")


@click.command()
@click.argument("target", required=False)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
@click.option("--out", type=PATH, default=Path("runs"), show_default=True, help="Folder to try writing to.")
def doctor(target: str | None, device: str, dtype: str, out: Path) -> None:
    """Check versions, devices, threads, shipped weights and write access; or the files and one token of TARGET."""
    from mulosd.errors import EnvironmentProblem, unknown_name
    from pipelines.cli.doctor import examine, examine_target
    from pipelines.plan.sweep import DTYPES

    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES, "--dtype")
    problems = 0
    for finding in examine_target(target, device=device, dtype=dtype) if target else examine(out):
        problems += finding.is_problem
        click.echo(f"{'!!' if finding.is_problem else 'ok'}  {finding.name:<16} {finding.text}")
    if problems:
        raise EnvironmentProblem(f"{problems} problem(s) found; see the lines marked !!.")
