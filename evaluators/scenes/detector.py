"""The detector of the scenes world: pixels in, objects out; it sees nothing but a uint8 RGB image.

Pixels are labelled by colour, labels are cut into objects, and each object is compared with the four shapes. The
confidence is the template IoU, calibrated so that a clean or mildly damaged object is above 0.9 (the counting
threshold of GenEval) and a ragged one between 0.5 and 0.9, times colour, proportion and margin.
"""

from typing import Any

import numpy as np
from scipy import ndimage

from evaluators.geneval.types import Detection
from evaluators.scenes import chroma as hue
from evaluators.scenes.blobs import Blob, find_blobs, part_blob
from evaluators.scenes.patterns import PLAIN, read_pattern
from evaluators.scenes.shapes import Fit, fit_shapes
from mulosd.scenes import vocabulary as voc
from mulosd.types import Bools, Floats32, Image

VERSION = "1"


MIN_SIDE, MAX_SIDE = 32, 256
MIN_SCORE = 0.05

# Confidence of a template IoU, linear between the knots.
_IOU_KNOTS = (0.60, 0.74, 0.82, 0.88, 0.96)
_SCORE_KNOTS = (0.0, 0.25, 0.70, 0.92, 1.0)
_FULL_MARGIN = 0.06  # IoU ahead of the second shape from which the shape is beyond doubt
_ASPECT = (1.15, 1.6)  # longer over shorter extent: fully trusted, not trusted at all
_SATURATION = (0.35, 0.65)  # of the palette's: not trusted at all, fully trusted
_FIT_SIDE = 64  # pixels per side at which shapes are fitted
_SOFTNESS = (0.3, 0.5)  # width of the outline's blur over the half extent: sharp enough, a smear
_HALF_EXTENT = (0.06, 0.11)  # of the side: too small to tell a shape, large enough; the smallest drawn is 0.156
_DOUBTFUL = 0.5  # a patch that scores less is cut at these necks, in sides, and its parts are tried
_NECKS = (1 / 32, 3 / 64, 1 / 16)


class ScenesDetector:
    """Finds the shapes of the scenes world in uint8 RGB images [H, W, 3] of 32 to 256 pixels.

    Shapes stand upright, as the world draws them: a figure it has no name for goes by the nearest one with a lower
    score (a square turned by 20 degrees: circle, about 0.75).
    """

    classes: tuple[str, ...] = voc.SHAPES
    colors: tuple[str, ...] = hue.COLOR_NAMES
    patterns: tuple[str, ...] = (*voc.PATTERNS, PLAIN)

    def identity(self) -> dict[str, Any]:
        """Name, version and the world it knows."""
        return {"name": "scenes-detector", "version": VERSION, "world": voc.WORLD_VERSION}

    def prepare(self) -> None:
        """Nothing to load."""

    def detect(self, image: Image) -> list[Detection]:
        """All objects, most confident first, each under its best shape. Raises ValueError for another image type."""
        _check(image)
        plane = hue.chroma(image)
        background = hue.background_chroma(plane)
        labels = hue.label_pixels(hue.smooth(plane), background)
        found = [one for blob in find_blobs(labels) for one in _detections(plane, background, blob)]
        return sorted((one for one in found if one.score >= MIN_SCORE), key=lambda one: -one.score)

    def color(self, image: Image, detection: Detection) -> str:
        """The palette colour nearest in hue to the median of the object's pixels."""
        _check(image)
        mask = _mask_of(detection, image)
        return hue.nearest_hue(np.median(hue.chroma(image[mask]), axis=0))

    def pattern(self, image: Image, detection: Detection) -> str:
        """ "striped", "dotted" or "plain"; always "plain" below 48 pixels, where no pattern can be drawn."""
        _check(image)
        return read_pattern(image.mean(axis=2), _mask_of(detection, image))


def _detections(plane: Floats32, background: Floats32, blob: Blob) -> list[Detection]:
    """The patch as one object, or as several where it makes poor sense as one and each part good sense."""
    whole = _detection(plane, background, blob)
    if whole.score >= _DOUBTFUL:
        return [whole]
    for neck in _NECKS:
        parts = [_detection(plane, background, part) for part in part_blob(blob, plane.shape[:2], neck)]
        if len(parts) > 1 and all(part.score >= _DOUBTFUL for part in parts):
            return parts
    return [whole]


def _detection(plane: Floats32, background: Floats32, blob: Blob) -> Detection:
    height, width = plane.shape[:2]
    cut = max(1, max(height, width) // _FIT_SIDE)
    full = _full_chroma(plane[blob.place], blob.inside)
    cover = _reduced(_cover(plane[blob.place], background, full, blob), cut)
    fits = fit_shapes(cover)
    best = fits[0]
    foreign = float((_reduced(blob.others.astype(np.float32), cut) * best.template).sum() / best.template.sum())
    trust = (
        _confidence(fits),
        _saturation(full, background, blob.color),
        float(np.interp(best.softness, _SOFTNESS, (1.0, 0.0))),
        float(np.interp(cut * min(best.half_x, best.half_y) / max(height, width), _HALF_EXTENT, (0.0, 1.0))),
        max(0.0, 1.0 - 2.0 * foreign),
    )
    mask = np.zeros((height, width), bool)
    mask[blob.place] = blob.inside
    return Detection(best.shape, _box(best, blob, cut, height, width), float(np.prod(trust)), mask)


def _full_chroma(plane: Floats32, inside: Bools) -> Floats32:
    """Median chroma [2] of the patch without its rim."""
    core = ndimage.binary_erosion(inside)
    return np.asarray(np.median(plane[core if core.any() else inside], axis=0), np.float32)


def _cover(plane: Floats32, background: Floats32, full: Floats32, blob: Blob) -> Floats32:
    """Coverage by the object, [h, w]; none on other objects and beyond the rim."""
    cover = hue.coverage(plane, background, full)
    near = ndimage.binary_dilation(blob.inside, structure=np.ones((3, 3)), iterations=blob.reach)
    return np.where(near & ~blob.others, cover, 0.0).astype(np.float32)


def _confidence(fits: list[Fit]) -> float:
    best, second = fits[0], fits[1]
    fitting = float(np.interp(best.iou, _IOU_KNOTS, _SCORE_KNOTS))
    margin = float(np.interp(best.iou - second.iou, (0.0, _FULL_MARGIN), (0.5, 1.0)))
    return fitting * margin * float(np.interp(best.aspect, _ASPECT, (1.0, 0.0)))


def _saturation(full: Floats32, background: Floats32, color: int) -> float:
    wanted = hue.palette()[color] - background
    share = float((full - background) @ wanted / (wanted @ wanted))
    return float(np.interp(share, _SATURATION, (0.0, 1.0)))


def _box(fit: Fit, blob: Blob, cut: int, height: int, width: int) -> tuple[float, float, float, float]:
    top, left = blob.place[0].start, blob.place[1].start
    x = np.clip(left + cut * np.array([fit.cx - fit.half_x, fit.cx + fit.half_x]), 0, width)
    y = np.clip(top + cut * np.array([fit.cy - fit.half_y, fit.cy + fit.half_y]), 0, height)
    return float(x[0]), float(y[0]), float(x[1]), float(y[1])


def _reduced(mask: Floats32, cut: int) -> Floats32:
    """Block means, the last blocks filled up with zeros: [h, w] -> [ceil(h / cut), ceil(w / cut)]."""
    if cut == 1:
        return mask
    height, width = mask.shape
    padded = np.pad(mask, ((0, -height % cut), (0, -width % cut)))
    return np.asarray(padded.reshape(padded.shape[0] // cut, cut, -1, cut).mean(axis=(1, 3)), np.float32)


def _mask_of(detection: Detection, image: Image) -> Bools:
    mask = detection.mask
    if mask is None or mask.shape != image.shape[:2] or not mask.any():
        raise ValueError("the detection has no mask of this image's size; use one that `detect` returned for it")
    return mask


def _check(image: Image) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"expected a uint8 RGB image [H, W, 3], got {image.dtype} {list(image.shape)}")
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in image.shape[:2]):
        raise ValueError(f"image of {image.shape[0]} x {image.shape[1]} pixels; allowed are {MIN_SIDE} to {MAX_SIDE}")
