"""Whether brightness inside a mask carries the pattern: contrast at the one period patterns are drawn with.

Inside the mask, brightness is regressed on a plane (shading) and on waves of period 1/16 side along y and along x with
free phase. Stripes vary along y only, dots along both axes. This module knows brightness, not colours or shapes.
"""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from mulosd.scenes import vocabulary as voc
from mulosd.types import Floats

PLAIN = "plain"

# Below three pixels a period cannot be told from noise (two pixels are the limit of sampling).
_MIN_PERIOD = 3.0
_MIN_PIXELS = 24

# Full contrast measures 64 along y for stripes and 32 along each axis for dots; about a quarter must be left. Not less:
# the code grid of a tokenizer with 4-pixel codes has the patterns' period at 64 pixels and was seen to leave 5 along y
# and 2 along x on plain objects (95th percentile).
_MIN_STRIPES = 14.0
_MIN_DOTS = 8.0
_MAX_SIDE_SHARE = 0.5  # weaker over stronger axis: stripes 0, dots 1


def read_pattern(brightness: Floats, mask: npt.NDArray[np.bool_]) -> str:
    """Stripes, dots or PLAIN for brightness [H, W] (grey levels) inside a mask of the whole image."""
    period_y, period_x = (side * voc.PATTERN_PERIOD for side in mask.shape)
    if min(period_x, period_y) < _MIN_PERIOD:
        return PLAIN
    inner = ndimage.binary_erosion(mask, structure=np.ones((3, 3)), iterations=max(1, max(mask.shape) // 96))
    if inner.sum() < _MIN_PIXELS:
        return PLAIN
    along_y, along_x = contrast(brightness, inner)
    if min(along_y, along_x) >= _MIN_DOTS and min(along_y, along_x) > _MAX_SIDE_SHARE * max(along_y, along_x):
        return "dotted"
    if along_y >= _MIN_STRIPES and along_x <= _MAX_SIDE_SHARE * along_y:
        return "striped"
    return PLAIN


def contrast(brightness: Floats, mask: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Amplitudes (grey levels) of the waves along y and along x at the pattern's period, inside the mask."""
    y, x = np.nonzero(mask)
    turn_y, turn_x = (
        2 * np.pi * (place + 0.5) / (side * voc.PATTERN_PERIOD) for place, side in zip((y, x), mask.shape, strict=True)
    )
    shading = [np.ones(len(y)), y - y.mean(), x - x.mean()]
    waves = [np.cos(turn_y), np.sin(turn_y), np.cos(turn_x), np.sin(turn_x)]
    design = np.stack([*shading, *waves], axis=1)
    # Normal equations are ten times faster than lstsq; the ridge only matters for masks thinner than a period.
    normal = design.T @ design
    weights = np.linalg.solve(normal + np.eye(len(normal)) * 1e-6 * len(y), design.T @ brightness[mask])
    return float(np.hypot(*weights[3:5])), float(np.hypot(*weights[5:7]))
