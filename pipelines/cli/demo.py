"""`mulosd demo`: the whole path on the tiny family, from prompts to table, figures and MLflow; a repeat is cached."""

import time
from collections.abc import Callable
from itertools import dropwhile, takewhile
from pathlib import Path

import click

from pipelines.cli.bars import progress_shown
from pipelines.compare.report import Report, write_report
from pipelines.plan.shipped import committed_tables, find_sweep
from pipelines.plan.sweep import Sweep, load_sweep
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.results import collect, latest_bench
from pipelines.tracking.log_sweep import track

SWEEP = "demo"
ANIMATION = "decode.gif"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True)
@click.option("--executor", type=click.Choice(["inprocess", "ray"]), default="ray", show_default=True)
def demo(out: Path, executor: str) -> None:
    """Run the demo sweep of the tiny family and show what came out."""
    run_demo(out, executor=executor, echo=click.echo)


def run_demo(out: Path, *, executor: str, echo: Callable[[str], None]) -> None:
    """Sweep, bench, report and tracking into the store `out`; each part is skipped when its result is there."""
    start = time.monotonic()
    sweep = load_sweep(find_sweep(SWEEP))
    with progress_shown() as progress:
        report = run_sweep(sweep, out=out, executor=executor, progress=progress)
    echo(report.summary())
    store = Store.existing(out)
    is_cached = report.decoded == 0 and report.scores_done == 0
    if latest_bench(store, report.sweep_key) is None:
        echo("measuring latency (batch 1, methods interleaved); leave the machine idle meanwhile ...")
        _bench(sweep, store)
        is_cached = False
    written = write_report(store, report.sweep_key)
    animation = _animation(store, report.sweep_key)
    is_tracked = track(store, report.sweep_key)
    _show(written, animation, store, is_tracked=is_tracked, echo=echo)
    wall_s = time.monotonic() - start
    echo(f"{'everything was cached' if is_cached else 'done'}: {wall_s:.1f} s")


def _bench(sweep: Sweep, store: Store) -> None:
    from pipelines.latency.bench import run_bench

    run_bench(sweep, out=store.root)


def _animation(store: Store, sweep_key: str) -> Path:
    """GIF of the first prompt decoded by the sweep's last cell that judges a draft, with that image's seed."""
    from mulosd.stage.read import iter_cell
    from pipelines.cli.single import animate_gif

    path = store.sweep_dir(sweep_key) / ANIMATION
    if path.exists():
        return path
    row = next(row for row in reversed(collect(store, sweep_key)) if row.judges_a_draft)
    first = next(iter(next(iter(iter_cell(store.cell_dir(row.cell_key))))))
    return animate_gif(
        path,
        target=row.target,
        method=row.method,
        prompt=first["prompt"],
        seed=first["seed"],
        knobs=[f"{name}={value}" for name, value in row.knobs.items()],
        device="cpu",
        dtype="float32",
    )


def _show(report: Report, animation: Path, store: Store, *, is_tracked: bool, echo: Callable[[str], None]) -> None:
    echo("\n" + report.table_file.read_text(encoding="utf-8"))
    for path in committed_tables():
        title, *lines = path.read_text(encoding="utf-8").splitlines()
        echo(f"{title.removeprefix('# ')} (docs/results/{path.name}):\n")
        from_table = dropwhile(lambda line: not line.startswith("|"), lines)
        echo("\n".join(takewhile(lambda line: line.startswith("|"), from_table)) + "\n")
    echo(f"contact sheet   {report.sheet}")
    if report.plot:
        echo(f"quality plot    {report.plot}")
    echo(f"animation       {animation}")
    echo(f"MLflow          mulosd ui {store.root}" + ("" if is_tracked else "   (not logged: see the warning above)"))
