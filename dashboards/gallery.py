"""The contact sheet: prompts down, methods across, each image beside its accepted/rejected/expanded map.

In: pictures per column label; columns are aligned by sample id, so all methods of a row share prompt and seed.
Out: a PIL image. Knows nothing of stores or models.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from dashboards.drawing import (
    INK,
    MUTED,
    PAPER,
    RULE,
    STATUS_COLOURS,
    STATUS_NAMES,
    font,
    picture,
    status_picture,
    wrap,
)
from dashboards.rows import Picture
from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes
from mulosd.types import STATUS_ACCEPTED, STATUS_SAMPLED

MARGIN = 28
GAP = 4  # between an image and its map
GUTTER = 22  # between columns
PROMPT_WIDTH = 168
CAPTION = 30  # below each pair
LEGEND = 46


def contact_sheet(columns: Mapping[str, Sequence[Picture]], *, title: str = "", tile: int = 128) -> Image.Image:
    """One row per sample id, one column per label; tile: side of an image in px."""
    rows = _sample_rows(columns)
    if not rows:
        raise DataError("the contact sheet has no images; run the sweep before drawing it.")
    pair = 2 * tile + GAP
    head = 30 + (34 if title else 0) + 2 * 17
    width = 2 * MARGIN + PROMPT_WIDTH + len(columns) * (pair + GUTTER)
    height = head + len(rows) * (tile + CAPTION) + LEGEND + 8
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((MARGIN, 24), title, font=font(19, bold=True), fill=INK)
    for i, (label, pictures) in enumerate(columns.items()):
        left = MARGIN + PROMPT_WIDTH + GUTTER + i * (pair + GUTTER)
        _column_head(draw, label, left, head - 8, pair)
        by_id = {p.sample_id: p for p in pictures}
        for j, sample_id in enumerate(rows):
            _pair(sheet, by_id.get(sample_id), (left, head + j * (tile + CAPTION)), tile)
    for j, prompt in enumerate(rows.values()):
        _prompt(draw, prompt, head + j * (tile + CAPTION), tile)
    _legend(draw, columns, height - LEGEND + 6)
    return sheet


def save_contact_sheet(
    path: Path, columns: Mapping[str, Sequence[Picture]], *, title: str = "", tile: int = 128
) -> Path:
    """Draw and publish the sheet as a PNG; returns the path."""
    out = io.BytesIO()
    contact_sheet(columns, title=title, tile=tile).save(out, "PNG", optimize=True)
    publish_bytes(path, out.getvalue())
    return path


def _sample_rows(columns: Mapping[str, Sequence[Picture]]) -> dict[str, str]:
    """sample_id -> prompt over all columns, in order of first appearance."""
    return {p.sample_id: p.prompt for pictures in columns.values() for p in pictures}


def _column_head(draw: ImageDraw.ImageDraw, label: str, left: int, bottom: int, width: int) -> None:
    method, _, knobs = label.partition(" ")
    draw.text((left, bottom - 34), method, font=font(14, bold=True), fill=INK)
    for line in wrap(knobs, width, font(11), 1):
        draw.text((left, bottom - 15), line, font=font(11), fill=MUTED)


def _prompt(draw: ImageDraw.ImageDraw, prompt: str, top: int, tile: int) -> None:
    draw.line([(MARGIN, top - 4), (MARGIN + PROMPT_WIDTH, top - 4)], fill=RULE)
    for i, line in enumerate(wrap(prompt, PROMPT_WIDTH - 4, font(13), max(1, tile // 18))):
        draw.text((MARGIN, top + 2 + 18 * i), line, font=font(13), fill=INK)


def _pair(sheet: Image.Image, shown: Picture | None, corner: tuple[int, int], tile: int) -> None:
    left, top = corner
    draw = ImageDraw.Draw(sheet)
    if shown is None:
        draw.rectangle([left, top, left + 2 * tile + GAP - 1, top + tile - 1], outline=RULE)
        draw.text((left + 8, top + 8), "no image", font=font(11), fill=MUTED)
        return
    sheet.paste(picture(shown.image, tile), (left, top))
    sheet.paste(status_picture(shown.status, tile), (left + tile + GAP, top))
    draw.text((left, top + tile + 4), f"{shown.forwards} forwards", font=font(12), fill=INK)
    draw.text((left + tile + GAP, top + tile + 4), _shares(shown), font=font(12), fill=MUTED)


def _shares(shown: Picture) -> str:
    """`71% of draft kept`: the share of the draft that stands, or "" for methods without a draft."""
    if (shown.status == STATUS_SAMPLED).all():
        return ""
    return f"{100 * float((shown.status == STATUS_ACCEPTED).mean()):.0f}% of draft kept"


def _legend(draw: ImageDraw.ImageDraw, columns: Mapping[str, Sequence[Picture]], top: int) -> None:
    used = {int(v) for pictures in columns.values() for p in pictures for v in set(p.status.ravel().tolist())}
    left = MARGIN + PROMPT_WIDTH + GUTTER
    for status in sorted(used):
        draw.rectangle([left, top + 2, left + 13, top + 15], fill=STATUS_COLOURS[status])
        draw.text((left + 20, top + 1), STATUS_NAMES[status], font=font(12), fill=INK)
        left += 20 + round(font(12).getlength(STATUS_NAMES[status])) + 26
