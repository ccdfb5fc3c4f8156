"""Rejection and resampling by region: a Markdown table, and a figure of the mean maps with the rates below.

Given the maps and rates of each cell; knows no store and no detector.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dashboards.drawing import STATUS_COLOURS, literal
from dashboards.markdown import markdown_table
from dashboards.numbers import DASH
from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes
from mulosd.types import STATUS_EXPANDED, STATUS_REJECTED, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REGIONS = ("object", "edge", "background")
COLUMNS = 8  # of one picture row; more cells go on below


@dataclass(frozen=True)
class CellRegions:
    """What one cell did to its drafts.

    rejected, resampled: share of the n images in which each cell of the grid [H, W] was. shares: region -> share of all
    cells. *_by_region: region -> share of its cells that were rejected (or resampled: rejected and expanded ones).
    """

    label: str
    target: str
    n: int
    rejected: npt.NDArray[np.float64]
    resampled: npt.NDArray[np.float64]
    shares: Mapping[str, float]
    rejected_by_region: Mapping[str, Estimate]
    resampled_by_region: Mapping[str, Estimate]


def regions_markdown(cells: Sequence[CellRegions]) -> str:
    """A row per cell: rejected and resampled share of all cells and of each region, with 95 % intervals."""
    heads = [f"{what} {name}" for what in ("rejected", "resampled") for name in ("", *REGIONS)]
    rows = []
    for cell in cells:
        entries = [f"{100 * cell.rejected.mean():.1f}%", *map(_percent, _in_order(cell.rejected_by_region))]
        entries += [f"{100 * cell.resampled.mean():.1f}%", *map(_percent, _in_order(cell.resampled_by_region))]
        rows.append([cell.target, cell.label, str(cell.n), *entries])
    shares = {cell.target: cell.shares for cell in cells}
    notes = [
        f"- Cells of {target}'s drafts: {', '.join(f'{100 * share[name]:.0f}% {name}' for name in REGIONS)}."
        for target, share in shares.items()
    ]
    table = markdown_table(["target", "method", "n", *map(str.strip, heads)], rows, align="ll" + "r" * 9)
    return "\n".join([table, "", *notes]) + "\n"


def save_region_maps(path: Path, cells: Sequence[CellRegions], *, title: str = "") -> Path:
    """Publish a PNG: per cell the mean map of rejections, that of resampling, and the rates by region.

    The maps of rejections share one scale, from 0 to their highest value; those of resampling go from 0 to 1.
    """
    from matplotlib.figure import Figure

    if not cells:
        raise DataError("there are no regions to plot; name a sweep with a mulosd cell.")
    columns = min(len(cells), COLUMNS)
    bands = -(-len(cells) // columns)
    figure = Figure(figsize=(1.9 * columns + 0.6, 5.6 * bands + 0.4), dpi=90, layout="constrained")
    grid = figure.subplots(3 * bands, columns, squeeze=False)
    highest = max(float(cell.rejected.max()) for cell in cells) or 1.0
    for index in range(bands * columns):
        axes = grid[3 * (index // columns) : 3 * (index // columns) + 3, index % columns]
        if index >= len(cells):
            for one in axes:
                one.set_axis_off()
            continue
        cell = cells[index]
        lines = [cell.target, *cell.label.removeprefix("mulosd ").split(" ")]
        axes[0].set_title(literal("\n".join(lines)), fontsize=7)
        for one, values, top in ((axes[0], cell.rejected, highest), (axes[1], cell.resampled, 1.0)):
            one.imshow(values, vmin=0.0, vmax=top, cmap="magma", interpolation="nearest")
            one.set_xticks([])
            one.set_yticks([])
        _draw_rates(axes[2], cell)
        if index % columns == 0:
            axes[0].set_ylabel(f"rejected (0 to {highest:.0%})", fontsize=8)
            axes[1].set_ylabel("resampled (0 to 100%)", fontsize=8)
            axes[2].set_ylabel("share of the region", fontsize=8)
    figure.legend(
        *grid[2, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize=7
    )
    figure.suptitle(literal(title), fontsize=10, x=0.01, ha="left")
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    publish_bytes(path, out.getvalue())
    return path


def _draw_rates(axes: "Axes", cell: CellRegions) -> None:
    series = (
        ("rejected", cell.rejected_by_region, STATUS_COLOURS[STATUS_REJECTED]),
        ("resampled", cell.resampled_by_region, STATUS_COLOURS[STATUS_EXPANDED]),
    )
    for offset, (name, rates, colour) in zip((-0.2, 0.2), series, strict=True):
        known = [(i, rate) for i, rate in enumerate(_in_order(rates)) if rate.value is not None]
        values = [rate.value or 0.0 for _, rate in known]
        limits = [rate.interval or (value, value) for (_, rate), value in zip(known, values, strict=True)]
        spreads = [[v - low for v, (low, _) in zip(values, limits, strict=True)]]
        spreads.append([high - v for v, (_, high) in zip(values, limits, strict=True)])
        places = [i + offset for i, _ in known]
        axes.bar(places, values, 0.38, yerr=spreads, color=[c / 255 for c in colour], label=name, error_kw={"lw": 0.8})
    axes.set_ylim(0, 1.05)
    axes.set_xticks(range(len(REGIONS)), REGIONS, fontsize=6)
    axes.tick_params(axis="y", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)


def _in_order(rates: Mapping[str, Estimate]) -> list[Estimate]:
    return [rates[name] for name in REGIONS]


def _percent(rate: Estimate) -> str:
    if rate.value is None:
        return DASH
    limits = f" [{100 * rate.interval[0]:.1f}, {100 * rate.interval[1]:.1f}]" if rate.interval else ""
    return f"{100 * rate.value:.1f}%{limits}"
