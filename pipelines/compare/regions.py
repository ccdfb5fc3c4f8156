"""Where verification rejects: rates by cell and by region of the draft, from the status maps that a sweep staged.

The draft that a cell judged is the image of the `draft-only` cell with the same sampler and draft knobs; the scenes
world's detector finds the objects in it, so the prompts must be of that world. Decodes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from dashboards.regions import REGIONS, CellRegions
from dashboards.rows import CellRow, Picture
from dashboards.table import ordered, prompts_of
from evaluators.scenes.detector import ScenesDetector
from evaluators.statistics import intervals as statistics
from mulosd.errors import DataError
from mulosd.files.pin import label_of
from mulosd.methods import DRAFT_KNOBS, SAMPLER_KNOBS
from mulosd.types import STATUS_EXPANDED, STATUS_REJECTED, Estimate
from pipelines.store.layout import Store
from pipelines.store.results import collect, pictures

Maps = npt.NDArray[np.int8]
BENCHMARKS = ("scenes", "dpg_scenes")


def sweep_regions(store: Store, sweep_key: str | None = None, *, cells: Sequence[str] = ()) -> list[CellRegions]:
    """The regions of every cell of a sweep that judges a draft (or of those named by key), in the order of its table.

    DataError where the prompts are not scenes, a cell is unknown, or its draft is not in the sweep.
    """
    rows = ordered(collect(store, sweep_key))
    if unknown := sorted(set(cells) - {row.cell_key for row in rows}):
        raise DataError(f"cell {unknown[0]} is not part of the sweep; `mulosd plan` lists the keys.")
    chosen = [row for row in rows if row.judges_a_draft and (not cells or row.cell_key in cells)]
    if not chosen:
        raise DataError(
            "no cell among those asked for verified a draft of the draft grid, as those of mulosd do; name a sweep "
            "with one."
        )
    drafts = {row.cell_key: _draft_of(row, rows) for row in chosen}
    labels: dict[str, dict[str, Maps]] = {}
    for draft in drafts.values():
        if draft.cell_key not in labels:
            labels[draft.cell_key] = {p.sample_id: regions_of(p.image, _grid(p)) for p in _shown(store, draft)}
    return [_cell_regions(row, _shown(store, row), labels[drafts[row.cell_key].cell_key]) for row in chosen]


def regions_of(image: npt.NDArray[np.uint8], grid: tuple[int, int]) -> Maps:
    """Index into REGIONS per cell of a grid [H, W] over an image [height, width, 3].

    object: the cell and its eight neighbours are inside found objects; background: outside; edge: every other cell.
    """
    mask = np.zeros(image.shape[:2], bool)
    for found in ScenesDetector().detect(image):
        if found.mask is not None:
            mask |= found.mask
    share = mask.reshape(grid[0], mask.shape[0] // grid[0], grid[1], -1).mean(axis=(1, 3))
    around = np.ones((3, 3), bool)
    inside = ndimage.binary_erosion(share == 1, structure=around, border_value=1)
    outside = ndimage.binary_erosion(share == 0, structure=around, border_value=1)
    return np.select([inside, outside], [REGIONS.index("object"), REGIONS.index("background")], 1).astype(np.int8)


def _draft_of(row: CellRow, rows: Sequence[CellRow]) -> CellRow:
    """The sweep's draft-only cell that leaves untouched what `row` judged."""
    if prompts_of(row) not in BENCHMARKS:
        raise DataError(
            f"{row.label} decoded prompts of {prompts_of(row)}; regions are read by the detector of the scenes world, "
            f"so the prompts must be of {' or '.join(BENCHMARKS)}."
        )
    for other in rows:
        if other.method == "draft-only" and other.target == row.target and _draft(other) == _draft(row):
            return other
    wanted = label_of(knobs=_draft(row).items()) or "no other knobs"
    raise DataError(f"the draft of {row.label} is not in the sweep; add a draft-only cell with {wanted} to it.")


def _draft(row: CellRow) -> dict[str, Any]:
    return {key: row.knobs[key] for key in (*SAMPLER_KNOBS, *DRAFT_KNOBS) if key in row.knobs}


def _grid(shown: Picture) -> tuple[int, int]:
    height, width = shown.status.shape
    return height, width


def _shown(store: Store, row: CellRow) -> list[Picture]:
    """The images of a cell that belong to the sweep."""
    return pictures(store, row.cell_key, sample_ids=row.counters["cycles"])


def _cell_regions(row: CellRow, shown: Sequence[Picture], labels: Mapping[str, Maps]) -> CellRegions:
    judged = [picture for picture in shown if picture.sample_id in labels]
    if not judged:
        raise DataError(f"no image of {row.label} has its draft in the sweep; decode both on the same prompts.")
    rejected = {p.sample_id: p.status == STATUS_REJECTED for p in judged}
    resampled = {p.sample_id: rejected[p.sample_id] | (p.status == STATUS_EXPANDED) for p in judged}
    return CellRegions(
        label=row.label,
        target=row.target,
        n=len(judged),
        rejected=np.mean(list(rejected.values()), axis=0),
        resampled=np.mean(list(resampled.values()), axis=0),
        shares={name: float(np.mean([labels[key] == i for key in rejected])) for i, name in enumerate(REGIONS)},
        rejected_by_region=_by_region(rejected, labels),
        resampled_by_region=_by_region(resampled, labels),
    )


def _by_region(marked: Mapping[str, npt.NDArray[np.bool_]], labels: Mapping[str, Maps]) -> dict[str, Estimate]:
    """Region -> share of its cells that are marked, over the images that have such cells; prompts are the units."""
    rates = {}
    for index, name in enumerate(REGIONS):
        cells = {key: float((labels[key] == index).sum()) for key in marked}
        some = {key: count for key, count in cells.items() if count}
        if not some:
            rates[name] = Estimate(None, reason=f"no draft has a cell of the region {name}")
            continue
        rates[name] = statistics.share_of_totals({k: float(marked[k][labels[k] == index].sum()) for k in some}, some)
    return rates
