"""Cutting a map of colour labels into objects: connected patches, parted where they only touch.

This module knows labels and sizes, not shapes or brightness.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from evaluators.scenes.chroma import BACKGROUND, COLOR_NAMES, Labels
from mulosd.types import Bools

Slices = tuple[slice, slice]

MIN_AREA = 0.008  # of the image; the smallest object that is drawn has 0.049
_NECK = 1.0 / 64.0  # half width, in sides, of a bridge that does not join two objects
_REACH = 0.25  # width of the rim that a blurred outline may cover, over the root of the patch's area
_CORE_SHARE = 0.15  # of the patch: a core smaller than this is a corner, not an object


@dataclass(frozen=True)
class Blob:
    """One patch of palette colour number `color`.

    place: its bounding box with `reach` pixels around it; inside: its pixels there; others: pixels there that belong to
    another patch or show another palette colour.
    """

    color: int
    place: Slices
    inside: Bools
    others: Bools
    reach: int


def find_blobs(labels: Labels) -> list[Blob]:
    """Patches of at least MIN_AREA of a label map [H, W]; what spans the image from edge to edge is not an object."""
    owner = np.zeros(labels.shape, np.int32)
    colors: list[int] = []
    for color in range(len(COLOR_NAMES)):
        for place, inside in _patches(labels == color):
            colors.append(color)
            owner[place][inside] = len(colors)
    rim = np.ones((3, 3), bool)
    blobs = []
    for index, tight in enumerate(ndimage.find_objects(owner)):
        if _spans(tight, labels.shape):
            continue
        area = int((owner[tight] == index + 1).sum())
        reach = 1 + round(_REACH * area**0.5)
        place = _grown(tight, reach, labels.shape)
        inside = owner[place] == index + 1
        # The antialiased rim of a neighbour is its own, however near it is.
        neighbours = ndimage.binary_dilation((owner[place] > 0) & ~inside, structure=rim)
        foreign = (labels[place] != colors[index]) & (labels[place] != BACKGROUND)
        blobs.append(Blob(colors[index], place, inside, (neighbours | foreign) & ~inside, reach))
    return blobs


def part_blob(blob: Blob, shape: tuple[int, ...], neck: float) -> list[Blob]:
    """The blob cut at bridges thinner than twice `neck` sides of an image [H, W]; [blob] where there is none."""
    smallest = MIN_AREA * shape[0] * shape[1]
    parts = [part for part in _parted(blob.inside, round(max(shape) * neck)) if part.sum() >= smallest]
    if len(parts) < 2:
        return [blob]
    return [replace(blob, inside=part, others=blob.others | (blob.inside & ~part)) for part in parts]


def _patches(mask: Bools) -> Iterator[tuple[Slices, Bools]]:
    smallest = MIN_AREA * mask.size
    if mask.sum() < smallest:
        return
    connected, _ = ndimage.label(mask)
    areas = np.bincount(connected.ravel())
    for index, place in enumerate(ndimage.find_objects(connected), start=1):
        if areas[index] >= smallest:
            for part in _parted(connected[place] == index, round(max(mask.shape) * _NECK)):
                if part.sum() >= smallest:
                    yield place, part


def _parted(patch: Bools, neck: int) -> list[Bools]:
    """The patch, or its parts where bridges thinner than two `neck` pixels join solid cores."""
    if neck < 1:
        return [patch]
    cores, num = ndimage.label(ndimage.binary_erosion(np.pad(patch, 1), iterations=neck)[1:-1, 1:-1])
    areas = np.bincount(cores.ravel(), minlength=num + 1)[1:]
    solid = np.flatnonzero(areas >= _CORE_SHARE * areas.sum()) + 1
    if len(solid) < 2:
        return [patch]
    cores[~np.isin(cores, solid)] = 0
    nearest = ndimage.distance_transform_edt(cores == 0, return_distances=False, return_indices=True)
    nearest_core = cores[tuple(nearest)]
    return [patch & (nearest_core == index) for index in solid]


def _spans(place: Slices, shape: tuple[int, ...]) -> bool:
    return any(axis.start == 0 and axis.stop == side for axis, side in zip(place, shape, strict=True))


def _grown(place: Slices, reach: int, shape: tuple[int, ...]) -> Slices:
    rows, columns = (
        slice(max(axis.start - reach, 0), min(axis.stop + reach, side)) for axis, side in zip(place, shape, strict=True)
    )
    return rows, columns
