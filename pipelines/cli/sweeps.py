"""Commands that read a sweep file: plan, run, bench."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click


def sweep_options(command: Any) -> Any:
    """SWEEP and --set, for commands that read a sweep file."""
    command = click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the sweep, dots for nesting."
    )(command)
    return click.argument("sweep")(command)


def power_options(command: Any) -> Any:
    """--power and its assumptions, for `plan`."""
    options = [
        click.option("--power", is_flag=True, help="Print how many prompts a given difference needs."),
        click.option("--difference", "differences", type=float, multiple=True, help="Differences (default: several)."),
        click.option(
            "--discordance",
            "discordances",
            type=float,
            multiple=True,
            help="Shares of prompts that methods disagree on.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@sweep_options
@click.option("--limit", type=click.IntRange(1), help="Only the first N prompts.")
@power_options
def plan(sweep: str, overrides: tuple[str, ...], limit: int | None, power: bool, **assumed: Any) -> None:
    """Print cells, chunks, sizes and cost of SWEEP (a YAML file or a shipped name); decodes nothing."""
    from pipelines.plan.build import build_plan
    from pipelines.plan.describe import describe

    planned = build_plan(load(sweep, overrides), limit=limit)
    lines = power_lines(planned, **assumed) if power else ()
    click.echo("\n".join([describe(planned), *lines]))


def tracking_options(command: Any) -> Any:
    """--tracking-uri, --no-track and --quiet, for commands whose results are logged to MLflow."""
    options = [
        click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: OUT/mlflow.db)."),
        click.option("--no-track", is_flag=True, help="Do not log to MLflow; `mulosd track OUT` does it later."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@sweep_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Store; many sweeps may share one.")
@click.option("--executor", type=click.Choice(["inprocess", "ray"]), default="inprocess", show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Ray actors (default: one per device).")
@click.option("--num-gpus", multiple=True, metavar="[TARGET=]N", help="GPUs per Ray actor; fractions are allowed.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N prompts.")
@click.option("--dry-run", is_flag=True, help="Say what is cached and what is left; write nothing.")
@tracking_options
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
    loaded = load(sweep, overrides)
    finished = None if no_track or dry_run else log_while_running(Store(out), tracking_uri=tracking_uri)
    with progress_shown(disable=quiet) as progress:
        report = run_sweep(loaded, out=out, dry_run=dry_run, progress=progress, finished=finished, **options)
    click.echo(report.summary())
    if not dry_run:
        _show_results(out, report.sweep_key, tracking_uri=tracking_uri, no_track=no_track)


@click.command()
@sweep_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Store that holds the sweep.")
@click.option("--threads", type=click.IntRange(1), help="torch threads (default: what torch chooses).")
@click.option("--force", is_flag=True, help="Measure again even if an equal run exists.")
@tracking_options
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
    loaded = load(sweep, overrides)
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


def power_lines(plan: Any, differences: Sequence[float], discordances: Sequence[float]) -> Iterator[str]:
    """What `plan --power` prints for a plan; empty sequences mean the defaults."""
    from pipelines.compare.compare import NON_INFERIORITY_MARGIN
    from pipelines.compare.power import DIFFERENCES, DISCORDANCES, describe_power

    yield from describe_power(
        plan.prompts[: plan.limit],
        images=plan.sweep.images_per_prompt,
        margin=NON_INFERIORITY_MARGIN,
        differences=differences or DIFFERENCES,
        discordances=discordances or DISCORDANCES,
    )


def load(sweep: str, overrides: Sequence[str]) -> Any:
    """The sweep of a file or of a shipped name, with its overrides."""
    from pipelines.plan.shipped import find_sweep
    from pipelines.plan.sweep import load_sweep

    return load_sweep(find_sweep(sweep), list(overrides))
