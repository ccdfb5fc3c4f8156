"""The images of a cell for MLflow: a contact sheet, and one image per prompt for the Image Grid chart.

MLflow's grid reads key and step from the file name (as its `log_image` writes it), so equal keys in every cell of a
sweep put the cells side by side. The names here hold nothing random: writing them again replaces the same files.
"""

import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from mulosd.files.pin import label_of
from pipelines.store.layout import Store
from pipelines.store.results import pictures

MAX_GRID = 32  # prompts in the grid of a cell
MAX_FILES = 2048  # grid images of a sweep, about: many cells show fewer prompts each
SHEET_PROMPTS = 8
WEBP_PX = 256
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_\-.]+")


def grid_samples(sample_ids: Sequence[str], num_cells: int) -> list[str]:
    """The samples that every cell of a sweep shows: the first image of the first prompts, 4 to 32 of them."""
    firsts = [sample_id for sample_id in sample_ids if sample_id.endswith("/0")]
    return firsts[: max(4, min(MAX_GRID, MAX_FILES // max(num_cells, 1)))]


def image_key(index: int, prompt: str) -> str:
    """`03 a red circle`: what the grid is titled with; letters, digits, blank, dot, dash and underscore only."""
    return f"{index:02d} {_NOT_IN_KEYS.sub(' ', prompt).strip()[:80]}".strip()


def image_name(cell_key: str, sample_id: str, key: str, time_ms: int) -> str:
    """File name without its ending, in the form of MLflow's `log_image`, at step 0."""
    unique = uuid.uuid5(uuid.NAMESPACE_URL, f"{cell_key}/{sample_id}")
    return f"{key}+step+0+timestamp+{time_ms}+{unique}"


def write_pictures(store: Store, cell_key: str, sample_ids: Sequence[str], time_ms: int, folder: Path) -> int:
    """Fill `folder` with contact_sheet.png and images/*; returns how many of the samples the cell holds."""
    from PIL import Image

    from dashboards.gallery import save_contact_sheet

    found = {picture.sample_id: picture for picture in pictures(store, cell_key, sample_ids=sample_ids)}
    if not found:
        return 0
    images = folder / "images"
    images.mkdir(parents=True)
    for index, sample_id in enumerate(sample_ids):
        if sample_id in found:
            picture = Image.fromarray(found[sample_id].image)
            name = image_name(cell_key, sample_id, image_key(index, found[sample_id].prompt), time_ms)
            picture.save(images / f"{name}.png")
            scale = WEBP_PX / max(picture.size)
            small = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
            small.save(images / f"{name}+compressed.webp")
    config = store.read_cell(cell_key)["config"]
    title = label_of(config["target"], config["method"], knobs=sorted(config["knobs"].items()))
    shown = [found[sample_id] for sample_id in sample_ids if sample_id in found][:SHEET_PROMPTS]
    save_contact_sheet(folder / "contact_sheet.png", {title.partition(" ")[2]: shown}, title=title)
    return len(found)
