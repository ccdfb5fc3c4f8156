"""Fonts, colours and small pieces shared by the figures of this package."""

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED, STATUS_SAMPLED

PAPER = (255, 255, 255)
INK = (32, 36, 44)
MUTED = (112, 119, 131)
RULE = (222, 226, 232)

# Distinguishable with the common colour-vision deficiencies (by lightness as well as hue).
STATUS_COLOURS = {
    STATUS_ACCEPTED: (64, 145, 128),
    STATUS_REJECTED: (205, 73, 38),
    STATUS_EXPANDED: (246, 197, 88),
    STATUS_SAMPLED: (203, 209, 218),
}
STATUS_NAMES = {
    STATUS_ACCEPTED: "accepted",
    STATUS_REJECTED: "rejected",
    STATUS_EXPANDED: "expanded",
    STATUS_SAMPLED: "sampled (no draft)",
}


@cache
def font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib ships it: the same glyphs on every machine."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


def literal(text: str) -> str:
    """Text for matplotlib, which reads what stands between two dollar signs as a formula and fails where it is none."""
    return text.replace("$", r"\$")


def wrap(text: str, width: int, face: ImageFont.FreeTypeFont, max_lines: int) -> list[str]:
    """Lines of at most `width` px; what does not fit in `max_lines` ends in an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        candidate = f"{lines[-1]} {word}" if lines else word
        if lines and face.getlength(candidate) <= width:
            lines[-1] = candidate
        else:
            lines.append(word)
    kept = lines[:max_lines]
    if len(lines) > max_lines:
        kept[-1] += "…"
    return [_clip(line, width, face) for line in kept]


def _clip(line: str, width: int, face: ImageFont.FreeTypeFont) -> str:
    while face.getlength(line) > width and len(line) > 1:
        line = line.rstrip("…")[:-1] + "…"
    return line


def picture(image: np.ndarray, side: int) -> Image.Image:
    """uint8 [height, width, 3] scaled to side x side px; whole multiples keep their pixels."""
    scaled = Image.fromarray(image)
    is_multiple = side % image.shape[0] == 0 and side % image.shape[1] == 0
    return scaled.resize((side, side), Image.Resampling.NEAREST if is_multiple else Image.Resampling.LANCZOS)


def status_picture(status: np.ndarray, side: int) -> Image.Image:
    """A status map [H, W] as side x side px with thin lines between the cells."""
    colours = np.zeros((*status.shape, 3), np.uint8)
    for value, colour in STATUS_COLOURS.items():
        colours[status == value] = colour
    unknown = sorted(set(np.unique(status).tolist()) - set(STATUS_COLOURS))
    if unknown:
        raise ValueError(f"status map holds values {unknown}; known: {sorted(STATUS_COLOURS)}")
    image = Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image, "RGBA")
    if side // max(status.shape) >= 4:
        for axis, cells in enumerate(status.shape):
            for i in range(1, cells):
                at = round(i * side / cells)
                ends = [(0, at), (side, at)] if axis == 0 else [(at, 0), (at, side)]
                draw.line(ends, fill=(255, 255, 255, 110))
    return image
