"""Which palette colour a pixel shows: decisions in the plane of colour differences.

Shading, patterns and brightness shifts add the same amount to all three channels, so they vanish in this plane and
antialiased edges are on straight lines between background and object. This module knows colours, not shapes.
"""

import functools

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from mulosd.scenes import vocabulary as voc
from mulosd.types import Floats32

Labels = npt.NDArray[np.int8]

COLOR_NAMES = tuple(voc.COLORS)
BACKGROUND = -1

# Orthonormal basis of the plane r + g + b = 0.
_BASIS = np.array([[1, -1, 0], [1, 1, -2]], np.float32).T / np.sqrt(np.array([2, 6], np.float32))

# Smoothing before a pixel is labelled, in sides: one pixel at 128, nothing at 32.
_SMOOTHING = 1.0 / 128.0


@functools.cache
def palette() -> Floats32:
    """Chroma of the palette colours, [colours, 2], in the order of COLOR_NAMES."""
    return chroma(np.array(list(voc.COLORS.values()), np.float32))


def chroma(rgb: npt.NDArray[np.generic]) -> Floats32:
    """Grey-free coordinates of RGB values: [..., 3] -> [..., 2], in grey levels."""
    return np.asarray(rgb.astype(np.float32) @ _BASIS, np.float32)


def smooth(plane: Floats32) -> Floats32:
    """Chroma image [H, W, 2] without pixel noise; edges move by less than a pixel."""
    sigma = max(plane.shape[:2]) * _SMOOTHING
    if sigma < 0.4:
        return plane
    return np.asarray(ndimage.gaussian_filter(plane, (sigma, sigma, 0), truncate=2.5), np.float32)


def background_chroma(plane: Floats32) -> Floats32:
    """Median chroma [2] of the pixels that are nearer to a background tone than to a palette colour.

    The neutral tone where no pixel is: then nothing stands out from a background and any answer serves.
    """
    tones = chroma(np.array(list(voc.BACKGROUNDS.values()), np.float32))
    nearest = _distances(plane, np.concatenate([tones, palette()])).argmin(0)
    pixels = plane[nearest < len(tones)]
    return np.median(pixels, axis=0) if len(pixels) else np.zeros(2, np.float32)


def label_pixels(plane: Floats32, background: Floats32) -> Labels:
    """Index of the nearest palette colour per pixel, BACKGROUND where that is nearest: [H, W, 2] -> [H, W]."""
    nearest = _distances(plane, np.concatenate([palette(), background[None]])).argmin(0)
    return np.where(nearest == len(COLOR_NAMES), BACKGROUND, nearest).astype(np.int8)


def coverage(plane: Floats32, background: Floats32, full: Floats32) -> Floats32:
    """Share of each pixel that has colour `full` [2] over `background` [2], in [0, 1]: [..., 2] -> [...]."""
    direction = full - background
    return np.clip((plane - background) @ (direction / float(direction @ direction)), 0.0, 1.0)


def nearest_hue(value: Floats32) -> str:
    """The palette colour whose direction in the plane is nearest to that of chroma `value` [2]."""
    directions = palette() / np.linalg.norm(palette(), axis=1, keepdims=True)
    return COLOR_NAMES[int((directions @ value).argmax())]


def _distances(plane: Floats32, centres: Floats32) -> Floats32:
    """Squared distances less the pixels' own square, [centres, H, W]: enough for an argmin."""
    flat = plane.reshape(-1, 2)
    squares = (centres * centres).sum(1)[:, None] - 2.0 * (centres @ flat.T)
    return np.asarray(squares.reshape(len(centres), *plane.shape[:2]), np.float32)
