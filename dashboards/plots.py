"""Quality against forwards, with 95 % intervals, from one results table."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dashboards.drawing import literal
from dashboards.table import CONTROLS, Column, Table, TableRow
from mulosd.errors import DataError
from mulosd.files.pin import label_of
from mulosd.files.publish import publish_bytes
from mulosd.types import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2b6cb0", "#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#4d7c0f", "#0e7490")
CONTROL_COLOUR = "#4b5563"
QUALITIES = ("geneval", "detail")

Knobs = Mapping[str, Any]


class Point(NamedTuple):
    """A row, and what tells it from the others of its series."""

    row: TableRow
    label: str


class Series(NamedTuple):
    """Points by rising forwards; joined where only numbers tell them apart."""

    points: list[Point]
    is_joined: bool


def save_quality_plot(path: Path, table: Table, *, defaults: Mapping[str, Knobs] | None = None) -> Path:
    """Publish a PNG with a panel per column of QUALITIES over forwards per image (log axis), target by target.

    defaults: method -> its knobs at their defaults, which the rows leave out. A row without forwards or quality is left
    out of a panel. Points of a series (`series_of`) are joined where only numbers distinguish them; `ar` and
    `draft-only` are diamonds, the interval of `ar` is a band. DataError where nothing can be drawn.
    """
    from matplotlib.figure import Figure  # no pyplot: a figure of its own, no global state

    series = series_of(table.rows, defaults or {})
    panels = [
        (column, target)
        for target in dict.fromkeys(row.target for row in table.rows)
        for column in table.columns
        if column.key in QUALITIES and any(_is_drawn(row, column) for row in table.rows if row.target == target)
    ]
    if not panels:
        raise DataError("no row of the table has both forwards and a quality; score the sweep before plotting it.")
    figure = Figure(figsize=(5.8 * len(panels), 4.4), dpi=110, layout="constrained")
    for index, (column, target) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        for number, (name, one) in enumerate(series.items()):
            shown = [point for point in one.points if point.row.target == target and _is_drawn(point.row, column)]
            if shown:
                _draw_series(axes, name, Series(shown, one.is_joined), column, COLOURS[number % len(COLOURS)])
        _finish(axes, column, target)
    figure.suptitle(literal(table.title), fontsize=10, x=0.01, ha="left")
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    publish_bytes(path, out.getvalue())
    return path


def series_of(rows: Sequence[TableRow], defaults: Mapping[str, Knobs]) -> dict[str, Series]:
    """The series of a plot by name.

    A series is a method, and where its rows differ in numbers as well as in words (or in a number that only some have),
    one choice of the words; its points are labelled by what differs between them.
    """
    series: dict[str, Series] = {}
    for method in dict.fromkeys(_method(row) for row in rows):
        own = [(row, {**defaults.get(method, {}), **row.knobs}) for row in rows if _method(row) == method]
        varying = _varying([knobs for _, knobs in own])
        words = [key for key in varying if not _is_numeric([knobs for _, knobs in own], key)]
        splitting = words if len(words) < len(varying) else []
        groups: dict[str, list[tuple[TableRow, Knobs]]] = {}
        for row, knobs in own:
            chosen = {key: value for key in splitting if (value := knobs.get(key)) is not None}
            groups.setdefault(_text(method, chosen), []).append((row, knobs))
        for name, members in groups.items():
            inside = _varying([knobs for _, knobs in members])
            points = [Point(row, _text("", {key: knobs.get(key) for key in inside})) for row, knobs in members]
            points.sort(key=lambda point: _value(point.row, "forwards") or 0.0)
            series[name] = Series(points, all(_is_numeric([knobs for _, knobs in members], key) for key in inside))
    return series


def _method(row: TableRow) -> str:
    return row.label.split(" ")[0]


def _varying(settings: Sequence[Knobs]) -> list[str]:
    keys = dict.fromkeys(key for knobs in settings for key in knobs)
    return [key for key in keys if len({repr(knobs.get(key)) for knobs in settings}) > 1]


def _is_numeric(settings: Sequence[Knobs], key: str) -> bool:
    return all(isinstance(knobs.get(key), int | float) for knobs in settings)


def _text(name: str, knobs: Knobs) -> str:
    return label_of(name, knobs=knobs.items()).strip()


def _value(row: TableRow, key: str) -> float | None:
    return row.cells[key].estimate.value


def _is_drawn(row: TableRow, column: Column) -> bool:
    return _value(row, "forwards") is not None and _value(row, column.key) is not None


def _draw_series(axes: "Axes", name: str, series: Series, column: Column, colour: str) -> None:
    points, is_control = series.points, name in CONTROLS
    colour = CONTROL_COLOUR if is_control else colour
    places = [(_value(p.row, "forwards") or 0.0, _value(p.row, column.key) or 0.0) for p in points]
    spreads = [_spread(point.row.cells[column.key].estimate) for point in points]
    axes.errorbar(
        [x for x, _ in places],
        [y for _, y in places],
        yerr=[list(side) for side in zip(*spreads, strict=True)],
        fmt=("D" if is_control else "o") + ("-" if series.is_joined else ""),
        color=colour,
        linewidth=1.2,
        elinewidth=0.9,
        capsize=2.5,
        markersize=5,
        label=literal(name),
    )
    for place, point in zip(places, points, strict=True):
        axes.annotate(
            literal(point.label), place, xytext=(5, 5), textcoords="offset points", fontsize=6.5, color=colour
        )
    interval = points[0].row.cells[column.key].estimate.interval
    if name == "ar" and interval:
        axes.axhspan(*interval, color=CONTROL_COLOUR, alpha=0.08, linewidth=0)


def _finish(axes: "Axes", column: Column, target: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("forwards per image (all kinds, both models)")
    axes.set_ylabel(f"{column.title}, 95 % interval")
    axes.set_title(literal(target), fontsize=9, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _spread(estimate: Estimate) -> tuple[float, float]:
    """Distances from the value down and up to its limits; 0 where there is no interval."""
    if estimate.value is None or estimate.interval is None:
        return 0.0, 0.0
    low, high = estimate.interval
    return max(0.0, estimate.value - low), max(0.0, high - estimate.value)
