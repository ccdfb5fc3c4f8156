"""Commands for clusters and the tracking server: submit, track, sync, ui."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)
TRACKING = click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: DIR/mlflow.db).")
ADDRESS = click.option("--address", help="Ray job server (default: RAY_API_SERVER_ADDRESS, or this machine).")


class SubmitGroup(click.Group):
    """`submit SWEEP ...` is `submit start SWEEP ...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group(cls=SubmitGroup)
def submit() -> None:
    """Run SWEEP as a Ray job, see and stop jobs: `submit SWEEP --out DIR`, `submit status`, `submit stop ID`."""


@submit.command()
@click.argument("sweep")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the sweep.")
@click.option("--out", required=True, type=PATH, help="Store, on a file system that every node sees.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N prompts.")
@click.option("--workers", type=click.IntRange(1), help="Ray actors (default: one per device).")
@click.option("--tracking-uri", envvar="MULOSD_TRACKING_URI", help="MLflow store (default: OUT/mlflow.db).")
@ADDRESS
@click.option("--working-dir", type=PATH, help="Folder to send (default: the checkout).")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable of the driver and its workers.")
@click.option("--driver-cpus", type=click.FloatRange(0), default=0, help="Cores to book for the driver (default 0).")
@click.option("--no-wait", is_flag=True, help="Return once it is submitted.")
@click.option("--dry-run", is_flag=True, help="Show what would be sent and run; submit nothing.")
def start(sweep: str, env: Sequence[str], address: str | None, no_wait: bool, dry_run: bool, **options: Any) -> int:
    """Send the working directory, start `mulosd run SWEEP` there, follow its log; ends with its exit code."""
    import shlex

    from pipelines.cluster.submit import follow, resolve_address, sweep_job
    from pipelines.cluster.submit import submit as submit_job
    from pipelines.cluster.upload import examine

    job = sweep_job(sweep, env=_variables(env), **options)
    server = resolve_address(address)
    for line in examine(job.working_dir).lines():
        click.echo(line)
    for name, file in job.added.items():
        click.echo(f"  and {file} as {name}")
    click.echo(f"{server}: {shlex.join(job.entrypoint)}")
    if dry_run:
        return 0
    submission_id = submit_job(job, server)
    click.echo(f"submitted as {submission_id}")
    if no_wait:
        return 0
    try:
        code = follow(submission_id, server, lambda text: click.echo(text, nl=False))
    except KeyboardInterrupt:
        click.echo(f"\nThe job goes on; `mulosd submit stop {submission_id}` ends it.", err=True)
        return 130
    click.echo(f"{submission_id} ended with exit code {code}")
    return code


@submit.command()
@click.argument("submission_id", required=False)
@ADDRESS
def status(submission_id: str | None, address: str | None) -> None:
    """Show the submitted sweeps, or one of them in full."""
    from pipelines.cluster.submit import resolve_address, status_lines

    for line in status_lines(submission_id, resolve_address(address)):
        click.echo(line)


@submit.command()
@click.argument("submission_id")
@ADDRESS
def stop(submission_id: str, address: str | None) -> None:
    """End a job; submitting the sweep again continues it."""
    from pipelines.cluster.submit import resolve_address
    from pipelines.cluster.submit import stop as stop_job

    click.echo(f"{submission_id}: {stop_job(submission_id, resolve_address(address))}")


@click.command()
@click.argument("store", metavar="DIR", type=PATH)
@TRACKING
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


@click.command()
@click.argument("store", metavar="DIR", type=PATH)
@TRACKING
@click.option("--all", "every", is_flag=True, help="Also entries already logged, for a server that lost them.")
def sync(store: Path, tracking_uri: str | None, every: bool) -> None:
    """Log to MLflow what waits in the outbox of the store DIR; nothing is logged twice."""
    from pipelines.store.layout import Store
    from pipelines.tracking.track import sync as replay

    num = 0
    for sweep_key, tracked in replay(Store.existing(store).root, tracking_uri=tracking_uri, every=every):
        num += 1
        if tracked.is_checked:
            click.echo(f"{sweep_key}: {tracked.written} cells logged, {tracked.unchanged} unchanged")
        else:
            click.echo(f"{sweep_key}: nothing waits; `mulosd track {store}` asks MLflow whether it has everything")
    if not num:
        click.echo(f"{store}: the outbox is empty; `mulosd track {store}` fills it from the results")


@click.command()
@click.argument("store", metavar="DIR", type=PATH)
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@TRACKING
def ui(store: Path, port: int, tracking_uri: str | None) -> None:
    """Open the MLflow UI of the store DIR on 127.0.0.1 (stop with Ctrl-C)."""
    from pipelines.tracking.ui import serve

    serve(store, port=port, tracking_uri=tracking_uri)


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    from mulosd.errors import ConfigError

    wrong = next((pair for pair in pairs if "=" not in pair or pair.startswith("=")), None)
    if wrong is not None:
        raise ConfigError(f"--env {wrong!r} must have the form NAME=VALUE, for instance --env OMP_NUM_THREADS=4.")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}
