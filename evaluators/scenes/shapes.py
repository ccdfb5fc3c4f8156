"""How well a soft mask is a circle, a square, a triangle or a cross: templates, fitted below the pixel.

A template is the coverage of one shape with free centre and half extents (and arm width for the cross). It starts from
the mask's moments and is refined by Gauss-Newton on the squared difference. This module knows masks, not colours.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from mulosd.scenes import vocabulary as voc
from mulosd.types import Floats32

_ARM = 0.38  # arm half width of a cross over its half extent; rendered ones are in [0.33, 0.43]
_ARM_RANGE = (0.25, 0.5)
_PERIMETERS = {"circle": 2 * np.pi, "square": 8.0, "triangle": 2 + 2 * np.sqrt(5.0), "cross": 8.0}  # half extent 1
_STEPS = 3
_MIN_HALF = 1.0  # pixels of the mask
_SHARP_WIDTH = 0.6  # pixels: outline width of an antialiased edge
_WIDTH_PER_SIGMA = 1.2  # outline width that each pixel of blur (standard deviation) adds, about
_MAX_BLUR = 0.2  # of the half extent
_RAMP = 0.3  # coverage that counts as none, and below one as full, so that blurred outlines compare like sharp ones


class Fit(NamedTuple):
    """One fitted template; centre, half extents and outline width in the mask's pixels.

    iou: of the sharpened mask and the sharpened template, the latter blurred like the mask before.
    """

    shape: str
    iou: float
    outline_width: float
    cx: float
    cy: float
    half_x: float
    half_y: float
    template: Floats32

    @property
    def softness(self) -> float:
        """Width of the outline over the half extent: near 0 sharp, near 1 a smear."""
        return self.outline_width / math.sqrt(self.half_x * self.half_y)

    @property
    def aspect(self) -> float:
        """Longer over shorter extent."""
        return max(self.half_x, self.half_y) / min(self.half_x, self.half_y)


def fit_shapes(mask: Floats32) -> list[Fit]:
    """Every shape fitted to a soft mask [h, w] in [0, 1], best IoU first. Raises ValueError for an empty mask."""
    if mask.sum() <= 0:
        raise ValueError("an empty mask has no shape")
    return sorted((_fit(shape, mask) for shape in voc.SHAPES), key=lambda fit: -fit.iou)


def soft_iou(a: Floats32, b: Floats32) -> float:
    """Intersection over union of two soft masks of one size: sum of minima over sum of maxima."""
    return float(np.minimum(a, b).sum() / np.maximum(a, b).sum())


def outline_width(mask: Floats32, shape: str, half: float) -> float:
    """Mean width in pixels of the band of partial coverage (0.2 to 0.8) along the outline of a shape this large."""
    band = float(((mask > 0.2) & (mask < 0.8)).sum())
    return float(band / (_PERIMETERS[shape] * half))


def _fit(shape: str, mask: Floats32) -> Fit:
    height, width = mask.shape
    best = params = _start(shape, mask)
    best_error = np.inf
    best_template = mask
    steps = np.diag([0.25, 0.25, 0.25, 0.25, 0.02][: len(params)]).astype(np.float32)
    for _ in range(_STEPS + 1):
        stack = _templates(shape, np.concatenate([params[None], params + steps, params - steps]), height, width)
        residual = (mask - stack[0]).ravel()
        error = float(residual @ residual)
        if error < best_error:
            best, best_error, best_template = params, error, stack[0]
        num = len(params)
        slopes = (stack[1 : num + 1] - stack[num + 1 :]).reshape(num, -1) / (2.0 * steps.diagonal()[:, None])
        normal = slopes @ slopes.T
        damping = np.diag(normal.diagonal() * 0.02 + 1e-4)
        move = np.linalg.solve(normal + damping, slopes @ residual)
        params = _bounded(params + np.clip(move, -4.0, 4.0).astype(np.float32))
    cx, cy, half_x, half_y = (float(v) for v in best[:4])
    width = outline_width(mask, shape, float(np.sqrt(half_x * half_y)))
    sigma = min(max(width - _SHARP_WIDTH, 0.0) / _WIDTH_PER_SIGMA, _MAX_BLUR * min(half_x, half_y))
    blurred = (
        ndimage.gaussian_filter(best_template, sigma, truncate=2.5, mode="nearest") if sigma > 0.2 else best_template
    )
    iou = soft_iou(_sharpened(mask), _sharpened(blurred))
    return Fit(shape, iou, width, cx, cy, half_x, half_y, best_template)


def _sharpened(mask: Floats32) -> Floats32:
    return np.asarray(np.clip((mask - _RAMP) / (1.0 - 2.0 * _RAMP), 0.0, 1.0), np.float32)


def _start(shape: str, mask: Floats32) -> Floats32:
    """Parameters (cx, cy, half_x, half_y[, arm]) whose template has the centroid and spread of the mask."""
    cx, cy, spread_x, spread_y = _moments(mask)
    offset, unit_x, unit_y = _unit_moments(shape)
    half_x, half_y = spread_x / unit_x, spread_y / unit_y
    params = [cx, cy - offset * half_y, half_x, half_y]
    return _bounded(np.array(params + [_ARM] * (shape == "cross"), np.float32))


def _bounded(params: Floats32) -> Floats32:
    params[2:4] = np.maximum(params[2:4], _MIN_HALF)
    params[4:] = np.clip(params[4:], *_ARM_RANGE)
    return params


def _moments(mask: Floats32) -> tuple[float, float, float, float]:
    """Centroid (x, y) and standard deviations (x, y) in pixels; a pixel's centre is at .5."""
    total = float(mask.sum())
    stats = []
    for profile in (mask.sum(0), mask.sum(1)):
        place = np.arange(len(profile)) + 0.5
        mean = float(profile @ place) / total
        stats.append((mean, np.sqrt(float(profile @ (place - mean) ** 2) / total)))
    (cx, spread_x), (cy, spread_y) = stats
    return cx, cy, float(spread_x), float(spread_y)


@functools.cache
def _unit_moments(shape: str) -> tuple[float, float, float]:
    """(centroid y, spread x, spread y) of the shape with half extents 1."""
    size = 400
    params = np.array([[size / 2, size / 2, size / 2, size / 2] + [_ARM] * (shape == "cross")], np.float32)
    _, cy, spread_x, spread_y = _moments(_templates(shape, params, size, size)[0])
    return (cy - size / 2) * 2 / size, spread_x * 2 / size, spread_y * 2 / size


def _templates(shape: str, params: Floats32, height: int, width: int) -> Floats32:
    """Coverage of each parameter row, [rows, height, width]: a linear ramp of one pixel across the outline."""
    cx, cy, half_x, half_y = (column[:, None, None] for column in params.T[:4])
    u = np.abs(np.arange(width, dtype=np.float32) + 0.5 - cx) / half_x
    v = (np.arange(height, dtype=np.float32)[:, None] + 0.5 - cy) / half_y
    outside = _OUTLINES[shape](u, v, params[:, 4:5, None])
    return np.asarray(np.clip(0.5 - outside * np.sqrt(half_x * half_y), 0.0, 1.0), np.float32)


def _circle(u: Floats32, v: Floats32, arm: Floats32) -> Floats32:
    return np.asarray(np.sqrt(u * u + v * v) - 1.0, np.float32)


def _square(u: Floats32, v: Floats32, arm: Floats32) -> Floats32:
    return np.asarray(np.maximum(u, np.abs(v)) - 1.0, np.float32)


def _triangle(u: Floats32, v: Floats32, arm: Floats32) -> Floats32:
    flank = (2.0 * u - v - 1.0) * np.float32(1 / np.sqrt(5.0))
    return np.asarray(np.maximum(flank, v - 1.0), np.float32)


def _cross(u: Floats32, v: Floats32, arm: Floats32) -> Floats32:
    height = np.abs(v)
    return np.asarray(np.minimum(np.maximum(u - arm, height - 1.0), np.maximum(u - 1.0, height - arm)), np.float32)


# Signed distance from the outline in half extents, from |u| (mirror-symmetric) and v; arm for the cross only.
_OUTLINES: dict[str, Callable[[Floats32, Floats32, Floats32], Floats32]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}
