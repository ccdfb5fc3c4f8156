"""The command line: `mulosd COMMAND --help` says what each does. Heavy imports stay inside the commands.

Exit codes: 0 done, 1 a bug (with its traceback), 2 something the user can fix (said on stderr), 130 interrupted by
Ctrl-C, 143 ended by SIGTERM. `pipelines.cli.entry` sees to the last two from the start of the process to its end.
"""

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mulosd.errors import UserError
from mulosd.files.home import home
from mulosd.training.stages import CHOICES
from pipelines.cli import checkpoints as cli_checkpoints
from pipelines.cli import compare as cli_compare
from pipelines.cli import explain as cli_explain
from pipelines.cli import methods as cli_methods
from pipelines.cli import regions as cli_regions
from pipelines.cli import train as cli_train
from pipelines.cli.jobs import register
from pipelines.cli.stage import stage
from pipelines.host import signals

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="mulosd")
@click.option("-v", "--verbose", is_flag=True, help="Log what is done to stderr.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Folder of converted families (MULOSD_WEIGHTS, ~/.cache/mulosd)."
)
def cli(verbose: bool, weights: Path | None) -> None:
    """Speculative decoding of autoregressive image generators: decode, score, compare."""
    if weights:  # through the environment, as workers are other processes
        os.environ["MULOSD_WEIGHTS"] = str(weights.absolute())
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; ends the process with the exit codes above."""
    # Read when torch loads its threads: waiting ones must not spin beside a busy core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("HOME", str(home()))  # libraries end in a traceback where there is none
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without a dash, or a lone surrogate: "?", no traceback
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="mulosd", standalone_mode=False)
    except UserError as error:
        click.echo(f"mulosd: {error}", err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # of any path that was given; whatever else arrives here is a bug
            raise
        click.echo(f"mulosd: {str(error.filename)[:80]}…: {error.strerror}; give a shorter name.", err=True)
        code = 2
    except click.Abort:
        click.echo(signals.INTERRUPTED_TEXT, err=True)
        code = signals.INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def sweep_options(command: Any) -> Any:
    """SWEEP and --set, for commands that read a sweep file."""
    command = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the sweep, dots for nesting."
    )(command)
    return click.argument("sweep")(command)


def decode_options(command: Any) -> Any:
    """What `generate` and `animate` need to decode one image."""
    options = [
        click.option("--target", required=True, help="Target id, e.g. tiny-mid."),
        click.option("--method", required=True, help="Id of a method; `mulosd methods` lists them."),
        click.option("--prompt", required=True, help="What to generate: a text, or class:N."),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
        click.option("--set", "knobs", multiple=True, metavar="KEY=VALUE", help="A knob of the method, e.g. tau=0.2."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
        click.option("--dtype", default="float32", show_default=True),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@decode_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="PNG file to write.")
@cli_explain.explain_options
def generate(out: Path, explain: bool, dry_run: bool, **options: Any) -> None:
    """Decode one prompt into a PNG file."""
    from pipelines.cli.single import generate_png

    if explain or dry_run:
        cli_explain.show(out, explain=explain, **options)
    if dry_run:
        return
    decoded = generate_png(out, **options)
    stats = decoded.stats
    taus = ", tau " + " ".join(f"{tau:.4g}" for tau in stats.chosen_taus) if stats.chosen_taus else ""
    click.echo(f"{out}: {stats.forwards} forwards for {decoded.tokens.size} tokens, {stats.resampled} resampled{taus}")


@cli.command()
@decode_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="GIF file to write.")
def animate(out: Path, **options: Any) -> None:
    """Decode one prompt and show its steps as an animated GIF."""
    from pipelines.cli.single import animate_gif

    click.echo(animate_gif(out, **options))


@cli.command()
@sweep_options
@click.option("--limit", type=click.IntRange(1), help="Only the first N prompts.")
@cli_compare.power_options
def plan(sweep: str, overrides: tuple[str, ...], limit: int | None, power: bool, **assumed: Any) -> None:
    """Print cells, chunks, sizes and cost of SWEEP (a YAML file or a shipped name); decodes nothing."""
    from pipelines.plan.build import build_plan
    from pipelines.plan.describe import describe

    planned = build_plan(_load(sweep, overrides), limit=limit)
    lines = cli_compare.power_lines(planned, **assumed) if power else ()
    click.echo("\n".join([describe(planned), *lines]))


@cli.command()
@sweep_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Store; many sweeps may share one.")
@click.option("--executor", type=click.Choice(["inprocess", "ray"]), default="inprocess", show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Ray actors (default: one per device).")
@click.option("--num-gpus", multiple=True, metavar="[TARGET=]N", help="GPUs per Ray actor; fractions are allowed.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N prompts.")
@click.option("--dry-run", is_flag=True, help="Say what is cached and what is left; write nothing.")
@click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: OUT/mlflow.db).")
@click.option("--no-track", is_flag=True, help="Do not log to MLflow; `mulosd track OUT` does it later.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def run(
    sweep: str,
    overrides: tuple[str, ...],
    out: Path,
    tracking_uri: str | None,
    no_track: bool,
    quiet: bool,
    dry_run: bool,
    num_gpus: tuple[str, ...],
    **options: Any,
) -> None:
    """Decode and score SWEEP into a store; the same command continues, extends or does nothing."""
    from pipelines.cli.bars import progress_shown
    from pipelines.cli.job_paths import check_job_paths
    from pipelines.plan.gpu_requests import parse_num_gpus
    from pipelines.run.driver import run_sweep
    from pipelines.store.layout import Store
    from pipelines.tracking.log_sweep import log_while_running

    check_job_paths(out, tracking_uri)
    options["num_gpus"] = parse_num_gpus(num_gpus)
    loaded = _load(sweep, overrides)
    finished = None if no_track or dry_run else log_while_running(Store(out), tracking_uri=tracking_uri)
    with progress_shown(disable=quiet) as progress:
        report = run_sweep(loaded, out=out, dry_run=dry_run, progress=progress, finished=finished, **options)
    click.echo(report.summary())
    if not dry_run:
        _show_results(out, report.sweep_key, tracking_uri=tracking_uri, no_track=no_track)


def _show_results(out: Path, sweep_key: str, *, tracking_uri: str | None, no_track: bool) -> None:
    """Write the table and pictures of a finished sweep, and log them."""
    from pipelines.compare.report import write_report
    from pipelines.store.layout import Store
    from pipelines.tracking.log_sweep import track

    store = Store.existing(out)
    written = write_report(store, sweep_key)
    click.echo(f"table: {written.table_file}\ncontact sheet: {written.sheet}")
    if not no_track and not track(store, sweep_key, tracking_uri=tracking_uri):
        click.echo("mulosd: the sweep is complete; only MLflow lacks it (see the warning above).", err=True)


@cli.command()
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


@cli.command()
@sweep_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Store that holds the sweep.")
@click.option("--threads", type=click.IntRange(1), help="torch threads (default: what torch chooses).")
@click.option("--force", is_flag=True, help="Measure again even if an equal run exists.")
@click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: OUT/mlflow.db).")
@click.option("--no-track", is_flag=True, help="Do not log to MLflow; `mulosd track OUT` does it later.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def bench(
    sweep: str,
    overrides: tuple[str, ...],
    out: Path,
    tracking_uri: str | None,
    no_track: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure the latency of SWEEP's methods, interleaved, and throughput at its larger bench.batches.

    Leave the machine idle meanwhile. The table of SWEEP and its MLflow runs, where it has finished, get the latencies.
    """
    from pipelines.cli.bars import bench_bar
    from pipelines.cli.job_paths import check_job_paths
    from pipelines.latency.bench import run_bench
    from pipelines.latency.bench_table import bench_lines
    from pipelines.plan.build import build_plan
    from pipelines.store.layout import Store

    check_job_paths(out, tracking_uri)
    loaded = _load(sweep, overrides)
    with bench_bar(disable=quiet) as progress:
        report = run_bench(loaded, out=out, progress=progress, **options)
    click.echo(f"{report.folder}{' (measured before)' if report.is_cached else ''}")
    labels = {cell.key: cell.label for cell in build_plan(loaded).cells}
    for line in bench_lines(report.content, labels):
        click.echo(line)
    key = report.content["sweep_key"]
    if key in Store(out).sweep_keys():
        _show_results(out, key, tracking_uri=tracking_uri, no_track=no_track)
    else:
        click.echo(f"{out} has no table of this sweep yet; `mulosd run` writes it with these latencies")


cli.add_command(stage)


@cli.command()
@click.argument("store", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: DIR/mlflow.db).")
def track(store: Path, tracking_uri: str | None) -> None:
    """Log every sweep of the store DIR to MLflow; runs that were deleted there are made again, the rest stays."""
    from mulosd.errors import EnvironmentProblem
    from pipelines.store.layout import Store
    from pipelines.tracking.log_sweep import track_again
    from pipelines.tracking.track import NotLogged

    opened = Store.existing(store)
    problems = {}
    for key in opened.sweep_keys():
        result = track_again(opened, key, tracking_uri=tracking_uri)
        if isinstance(result, NotLogged):
            problems[key] = result.problem
        else:
            click.echo(f"{key}: {result.written} cells logged, {result.unchanged} unchanged")
    if problems:
        key, problem = next(iter(problems.items()))
        num = f"; {len(problems)} sweeps in all" if len(problems) > 1 else ""
        raise EnvironmentProblem(
            f"sweep {key} could not be logged to MLflow ({problem}){num}; mend that or check --tracking-uri, and run "
            "the same command again."
        )


@cli.group()
def train() -> None:
    """Train the models that ship with the project."""


@train.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/tiny"), show_default=True)
@click.option("--stage", type=click.Choice(CHOICES), default="all", show_default=True)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop (resumably) after this long.")
def tiny(out: Path, stage: str, minutes: float | None) -> None:
    """Train the tiny family from scratch; the same command resumes."""
    from mulosd.training.tiny import main as train_tiny

    train_tiny(out=out, stage=stage, minutes=minutes)


@cli.command()
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


@cli.command()
@click.argument("family", type=click.Choice(["tiny"]))
@click.option("--family-folder", type=click.Path(path_type=Path), help="Folder of the card (default: the shipped one).")
def card(family: str, family_folder: Path | None) -> None:
    """Print the card of FAMILY as a Markdown page."""
    from dashboards.card import card_markdown
    from mulosd.families.card import family_folder as shipped
    from mulosd.families.card import read_family

    click.echo(card_markdown(read_family(family_folder or shipped(family))), nl=False)


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True)
@click.option("--executor", type=click.Choice(["inprocess", "ray"]), default="ray", show_default=True)
def demo(out: Path, executor: str) -> None:
    """Run the demo sweep of the tiny family and show what came out."""
    from pipelines.cli.demo import run_demo

    run_demo(out, executor=executor, echo=click.echo)


def _load(sweep: str, overrides: Sequence[str]) -> Any:
    from pipelines.plan.shipped import find_sweep
    from pipelines.plan.sweep import load_sweep

    return load_sweep(find_sweep(sweep), list(overrides))


register(cli)
cli_checkpoints.register(cli)
cli_train.register(train)

cli.add_command(cli_compare.compare)
cli.add_command(cli_compare.table)
cli.add_command(cli_methods.methods)
cli.add_command(cli_regions.regions)
