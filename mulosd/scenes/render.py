"""Rendering of scenes at any resolution with antialiasing.

A pixel's value is the box-filtered scene: coverage from signed distances for outlines, exact interval
integrals for patterns. With a pattern period of 1/16 of the side, a 32-pixel rendering averages every
pattern to the object's mean colour, while 64 pixels and more draw it in full contrast.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mulosd.errors import ConfigError
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.world import LATTICE, Scene, SceneObject
from mulosd.types import Image

SHADE = 14.0  # grey levels from an object's middle to its top (lighter) or bottom (darker)

Map = npt.NDArray[np.floating[Any]]


def render(scene: Scene, size: int) -> Image:
    """The scene as uint8 RGB [size, size, 3]."""
    if size < 8:
        raise ConfigError(f"render size = {size} is too small; give at least 8 pixels.")
    centre = (np.arange(size, dtype=np.float32) + 0.5) / size
    y, x = centre[:, None], centre[None, :]
    tone = np.array(voc.BACKGROUNDS[scene.background], np.float32)
    canvas: Map = tone + np.zeros((size, size, 1), np.float32)
    for obj in scene.objects:
        cover = coverage(obj, x, y, size)[..., None]
        canvas = canvas * (1 - cover) + _surface(obj, y, size) * cover
    image: Image = np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
    return image


def coverage(obj: SceneObject, x: Map, y: Map, size: int) -> Map:
    """Share of each pixel that the object covers, [size, size] in [0, 1]."""
    u = (x - obj.cx / LATTICE) * (LATTICE / obj.half)
    v = (y - obj.cy / LATTICE) * (LATTICE / obj.half)
    distance = _DISTANCES[obj.shape](u, v, obj.half) * (obj.half / LATTICE)
    share: Map = np.clip(0.5 - distance * size, 0.0, 1.0).astype(np.float32)
    return share


def _surface(obj: SceneObject, y: Map, size: int) -> Map:
    lift: Map = SHADE * np.clip((obj.cy / LATTICE - y) * (LATTICE / obj.half), -1, 1)
    base: Map = np.array(voc.COLORS[obj.color], np.float32) + lift[..., None]
    if obj.pattern is None:
        flat: Map = base + np.zeros((size, size, 1), np.float32)
        return flat
    band = _dark_share(size)
    if obj.pattern == "striped":
        delta: Map = voc.PATTERN_AMPLITUDE * (1 - 2 * band[:, None]) + np.zeros((size, size), np.float32)
    else:
        dots = band[:, None] * band[None, :]
        delta = voc.PATTERN_AMPLITUDE * (0.5 - 2.0 * dots)
    patterned: Map = base + delta[..., None]
    return patterned


def _dark_share(size: int) -> Map:
    """Share of each pixel interval that lies in the dark half period (phase 1/4 .. 3/4), [size]."""
    edges = np.arange(size + 1) / size / voc.PATTERN_PERIOD
    whole, phase = np.divmod(edges, 1.0)
    integral = 0.5 * whole + np.clip(phase - 0.25, 0.0, 0.5)
    share: Map = (np.diff(integral) * size * voc.PATTERN_PERIOD).astype(np.float32)
    return share


def _circle(u: Map, v: Map, half: int) -> Map:
    return np.sqrt(u * u + v * v) - 1.0


def _square(u: Map, v: Map, half: int) -> Map:
    return np.maximum(np.abs(u), np.abs(v)) - 1.0


def _triangle(u: Map, v: Map, half: int) -> Map:
    """Upright isosceles triangle: apex (0, -1), base y = 1 from x = -1 to 1."""
    side: Map = (2.0 * np.abs(u) - (v + 1.0)) / np.sqrt(5.0)
    edge: Map = np.maximum(side, v - 1.0)
    return edge


def _cross(u: Map, v: Map, half: int) -> Map:
    """Plus sign; its arms are about a third wide, rounded to the lattice."""
    arm = round(0.36 * half) / half
    upright = np.maximum(np.abs(u) - arm, np.abs(v) - 1.0)
    lying = np.maximum(np.abs(u) - 1.0, np.abs(v) - arm)
    return np.minimum(upright, lying)


_DISTANCES = {"circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross}
