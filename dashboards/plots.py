"""Quality against forwards, with 95 % intervals, from one results table."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards.table import Estimate, Table, TableRow
from mulosd.errors import DataError
from mulosd.stage.publish import publish_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2b6cb0", "#c2410c", "#0f766e", "#7c3aed", "#a16207")
CONTROL_COLOUR = "#4b5563"


def save_quality_plot(path: Path, table: Table, *, quality: str = "geneval") -> Path:
    """Publish a PNG of column `quality` over forwards per image (log axis); rows without either are left out.

    Points of one method are joined; `ar` and `draft-only` are drawn as diamonds, the interval of `ar` as a band.
    """
    from matplotlib.figure import Figure  # no pyplot: a figure of its own, no global state

    shown = [row for row in table.rows if _value(row, quality) is not None and _value(row, "forwards") is not None]
    if not shown:
        raise DataError(f"no row of the table has both forwards and {quality}; score the sweep before plotting it.")
    column = next(c for c in table.columns if c.key == quality)
    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for name, rows in _series(shown).items():
        _draw_series(axes, name, rows, quality, list(_series(shown)).index(name))
    _draw_baseline(axes, shown, quality)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("forwards per image (all kinds, both models)")
    axes.set_ylabel(f"{column.title}, 95 % interval")
    axes.set_title(table.title, fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    publish_bytes(path, out.getvalue())
    return path


def _value(row: TableRow, key: str) -> float | None:
    return row.cells[key].estimate.value


def _series(rows: list[TableRow]) -> dict[str, list[TableRow]]:
    """Rows by method (and target, when there are several), by rising forwards."""
    has_targets = len({row.target for row in rows}) > 1
    series: dict[str, list[TableRow]] = {}
    for row in sorted(rows, key=lambda row: _value(row, "forwards") or 0.0):
        method = row.label.split(" ")[0]
        series.setdefault(f"{row.target} {method}" if has_targets else method, []).append(row)
    return series


def _draw_series(axes: "Axes", name: str, rows: list[TableRow], quality: str, index: int) -> None:
    is_control = rows[0].is_control
    colour = CONTROL_COLOUR if is_control else COLOURS[index % len(COLOURS)]
    axes.errorbar(
        [_value(row, "forwards") or 0.0 for row in rows],
        [_value(row, quality) or 0.0 for row in rows],
        yerr=[list(side) for side in zip(*(_spread(row.cells[quality].estimate) for row in rows), strict=True)],
        fmt="D" if is_control else "o-",
        color=colour,
        linewidth=1.2,
        elinewidth=0.9,
        capsize=2.5,
        markersize=5,
        label=name,
    )
    for row in rows:
        knobs = row.label.partition(" ")[2] or name
        axes.annotate(
            knobs,
            (_value(row, "forwards") or 0.0, _value(row, quality) or 0.0),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=6.5,
            color=colour,
        )


def _draw_baseline(axes: "Axes", rows: list[TableRow], quality: str) -> None:
    for row in rows:
        interval = row.cells[quality].estimate.interval
        if row.label.split(" ")[0] == "ar" and interval:
            axes.axhspan(*interval, color=CONTROL_COLOUR, alpha=0.08, linewidth=0)


def _spread(estimate: Estimate) -> tuple[float, float]:
    """Distances from the value down and up to its limits; 0 where there is no interval."""
    if estimate.value is None or estimate.interval is None:
        return 0.0, 0.0
    low, high = estimate.interval
    return max(0.0, estimate.value - low), max(0.0, high - estimate.value)
