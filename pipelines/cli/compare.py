"""Commands and options for comparing: `compare`, `table`, and what `plan --power` prints. Heavy imports stay inside."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from mulosd.errors import ConfigError

FORMATS = ("md", "csv", "tex")


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--store", type=click.Path(path_type=Path), help="Store in which labels and keys are looked up.")
@click.option("--sweep-key", help="Look only in this sweep of the store (default: the newest that has it).")
@click.option("--metric", help="Metric that sorts the largest changes (default: geneval/overall, else detail).")
@click.option("--prompts", type=click.IntRange(1), default=6, show_default=True, help="Changed prompts to show.")
@click.option("--format", "form", type=click.Choice(["md", "json"]), default="md", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for text and contact sheet (default: in A's store)."
)
def compare(a: str, b: str, store: Path | None, sweep_key: str | None, out: Path | None, **options: Any) -> None:
    """Compare A with B: two cells by label or key prefix, two sweeps, or two stores.

    A cell is named by its label ("mulosd tau=0.2") or key prefix in --store, by DIR:LABEL, or by its folder.
    """
    from dashboards.pair import pair_json, pair_markdown
    from pipelines.compare.pair_inputs import find_sides, matched
    from pipelines.compare.pairwise import compare_pair, write_pair

    form = {"md": pair_markdown, "json": pair_json}[options["form"]]
    sides = [find_sides(name, store=store, sweep_key=sweep_key) for name in (a, b)]
    pairs = matched(*sides)
    for left, right in pairs:
        pair = compare_pair(left, right, metric=options["metric"], changes=options["prompts"])
        name = f"{left.row.cell_key}-{right.row.cell_key}"
        folder = out if out and len(pairs) == 1 else (out or left.store.root / "compare") / name
        written = write_pair(left, right, pair, folder)
        click.echo(form(pair), nl=False)
        click.echo("\n".join(map(str, written)), err=options["form"] == "json")


@click.command()
@click.argument("source", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--format", "form", type=click.Choice(FORMATS), default="md", show_default=True)
@click.option("--sweep-key", help="Which sweep (default: the last one).")
@click.option(
    "--from",
    "origin",
    default="store",
    show_default=True,
    metavar="store|mlflow|URI",
    help="Read the store DIR, the MLflow database of DIR, or any tracking URI.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="PNG file to write: quality over forwards.")
def table(source: Path | None, form: str, sweep_key: str | None, origin: str, plot: Path | None) -> None:
    """Print the table of a sweep, from the store DIR or from MLflow: the numbers are the same."""
    from dashboards.render import render
    from pipelines.compare.report import read_results, results_table, write_plot
    from pipelines.store.layout import Store

    if origin in ("store", "mlflow") and source is None:
        raise ConfigError("name the folder: `mulosd table DIR`, or `mulosd table --from URI` for a tracking server.")
    if origin == "store":
        assert source is not None
        results = read_results(Store.existing(source), sweep_key)
    else:
        from pipelines.tracking.mlflow_rows import results_from_mlflow
        from pipelines.tracking.tracking_uri import default_uri

        if origin != "mlflow" and "://" not in origin:
            raise ConfigError(
                f"--from {origin} is not allowed; give store, mlflow or a tracking URI such as http://..."
            )
        if origin == "mlflow":
            assert source is not None
            origin = default_uri(source)
        results = results_from_mlflow(origin, sweep_key)
    shown = results_table(results)
    click.echo(render(shown, form), nl=False)
    if plot:
        click.echo(write_plot(plot, shown), err=True)


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
