"""An animation of one decode: the image as it stands after each step, with undecided cells covered.

In: `Decoded.frames` (int [H, W], -1 where undecided) and a function that turns such a frame into pixels; the
caller decides what undecided cells are filled with, they are covered here. Out: an endless GIF.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dashboards.drawing import INK, MUTED, PAPER, RULE, STATUS_COLOURS, font, wrap
from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED

MARGIN = 16
BAR = 6
HOLD_MS = 2500  # on the finished image
COVER = (236, 239, 244)
CHANGED = STATUS_COLOURS[STATUS_EXPANDED]

ToImage = Callable[[np.ndarray], np.ndarray]


def draw_frames(
    frames: Sequence[np.ndarray], to_image: ToImage, *, title: str = "", side: int = 320, max_frames: int = 80
) -> list[Image.Image]:
    """One image per kept frame; frames in which nothing changed are left out, the last one is always there."""
    steps = _thin(_changes(frames), max_frames)
    if not steps:
        raise DataError("the animation has no frames; decode with frames=True.")
    pictures = []
    before: np.ndarray | None = None
    for number, tokens in steps:
        pictures.append(_draw(tokens, before, to_image(tokens), f"step {number} of {steps[-1][0]}", title, side))
        before = tokens
    return pictures


def save_animation(
    path: Path,
    frames: Sequence[np.ndarray],
    to_image: ToImage,
    *,
    title: str = "",
    side: int = 320,
    max_frames: int = 80,
    frame_ms: int = 120,
) -> Path:
    """Publish the GIF; the finished image is held. Returns the path."""
    pictures = draw_frames(frames, to_image, title=title, side=side, max_frames=max_frames)
    durations = [frame_ms] * (len(pictures) - 1) + [HOLD_MS]
    # One palette for all frames: with a palette each, flat areas flicker.
    palette = _montage(pictures).quantize(255, dither=Image.Dither.NONE)
    indexed = [p.quantize(palette=palette, dither=Image.Dither.NONE) for p in pictures]
    out = io.BytesIO()
    indexed[0].save(out, "GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0, disposal=1)
    publish_bytes(path, out.getvalue())
    return path


def _changes(frames: Sequence[np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """(step, frame) without repeats; steps count from 1."""
    kept: list[tuple[int, np.ndarray]] = []
    for number, frame in enumerate(frames, 1):
        if not kept or not np.array_equal(kept[-1][1], frame):
            kept.append((number, np.asarray(frame)))
    return kept


def _thin(steps: list[tuple[int, np.ndarray]], most: int) -> list[tuple[int, np.ndarray]]:
    if len(steps) <= most:
        return steps
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _draw(
    tokens: np.ndarray, before: np.ndarray | None, pixels: np.ndarray, step: str, title: str, side: int
) -> Image.Image:
    top = 40 if title else MARGIN
    canvas = Image.new("RGB", (side + 2 * MARGIN, top + side + 46), PAPER)
    draw = ImageDraw.Draw(canvas)
    for line in wrap(title, side, font(13, bold=True), 1):
        draw.text((MARGIN, 14), line, font=font(13, bold=True), fill=INK)
    canvas.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS), (MARGIN, top))
    _cover(draw, tokens, before, (MARGIN, top), side)
    decided = int((tokens >= 0).sum())
    bar_top = top + side + 10
    draw.rectangle([MARGIN, bar_top, MARGIN + side, bar_top + BAR], fill=RULE)
    end = MARGIN + round(side * decided / tokens.size)
    draw.rectangle([MARGIN, bar_top, end, bar_top + BAR], fill=STATUS_COLOURS[STATUS_ACCEPTED])
    draw.text((MARGIN, bar_top + 11), f"{decided} / {tokens.size} tokens", font=font(12), fill=INK)
    draw.text((MARGIN + side, bar_top + 11), step, font=font(12), fill=MUTED, anchor="ra")
    return canvas


def _cover(
    draw: ImageDraw.ImageDraw, tokens: np.ndarray, before: np.ndarray | None, corner: tuple[int, int], side: int
) -> None:
    """Cover undecided cells; outline the ones this step decided or replaced."""
    rows, cols = tokens.shape
    fresh = tokens >= 0 if before is None else (tokens >= 0) & (tokens != before)
    is_all_fresh = bool(fresh.all())
    for y in range(rows):
        for x in range(cols):
            box = [
                corner[0] + round(x * side / cols),
                corner[1] + round(y * side / rows),
                corner[0] + round((x + 1) * side / cols) - 1,
                corner[1] + round((y + 1) * side / rows) - 1,
            ]
            if tokens[y, x] < 0:
                draw.rectangle(box, fill=COVER, outline=PAPER)
            elif fresh[y, x] and not is_all_fresh:
                draw.rectangle(box, outline=CHANGED, width=2)


def _montage(pictures: Sequence[Image.Image]) -> Image.Image:
    """Up to four frames in a row, the last included: what the common palette is chosen from."""
    chosen = [pictures[round(i * (len(pictures) - 1) / 3)] for i in range(4)]
    width, height = chosen[0].size
    sheet = Image.new("RGB", (4 * width, height))
    for i, shown in enumerate(chosen):
        sheet.paste(shown, (i * width, 0))
    return sheet
