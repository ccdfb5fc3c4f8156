"""COCO val2017 captions, one per image by a named policy.

Images are sorted by id and everything joins by image id: neither list in the file is sorted, and pairing captions and
images by position is the classic trap.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError, unknown_name
from mulosd.files.reading import parse_json
from mulosd.prompts.base import check_keys, read_lines, required_path, whole_number
from mulosd.types import Prompt

WHAT = "COCO's captions_val2017.json"
POLICIES = ("first", "longest", "random")

# Images have five to seven captions; "random" draws from the first five, as public loaders do.
NUM_RANDOM = 5

Annotation = Mapping[str, Any]


KEYS = ("path", "caption", "count", "seed")


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: path (JSON file), caption (policy, default first), count (images, default all), seed.

    caption: "first" is the lowest annotation id, "longest" has most characters (lowest id on a tie), "random" one of
    the first five, drawn by `seed`. count without seed takes the lowest image ids; with seed a fixed draw in which a
    smaller count is a subset of a larger one. White space in captions is collapsed; metadata keeps the raw text.
    """
    where = check_keys(spec, KEYS)
    path = required_path(spec, WHAT)
    policy = spec.get("caption", "first")
    if policy not in POLICIES:
        raise unknown_name("caption policy", str(policy), POLICIES, where)
    count = whole_number(spec, "count", default=None, low=1)
    seed = whole_number(spec, "seed", default=None, low=0)
    if policy == "random" and seed is None:
        raise ConfigError(f"{where}: caption = 'random' needs a seed; give a whole number from 0 on.")
    by_image = _read(path)
    if count is not None and count > len(by_image):
        raise ConfigError(f"{where}: count = {count} is too large; {path} has {len(by_image)} images.")
    images = _choose_images(sorted(by_image), count, seed)
    return [_prompt(image, _choose_caption(by_image[image], policy, seed), policy, path) for image in images]


def _read(path: Path) -> dict[int, list[Annotation]]:
    """Image id -> its annotations by ascending annotation id."""
    lines = read_lines(path, WHAT)
    try:
        data = parse_json("\n".join(lines))
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise DataError(f"{path}:{line}: not JSON ({error}); give {WHAT}.") from error
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("images", "annotations")):
        raise DataError(f"{path}:1: lacks the lists 'images' and 'annotations'; give {WHAT}.")
    by_image: dict[int, list[Annotation]] = {}
    for i, image in enumerate(data["images"]):
        key = _field(image, "id", int, f"{path}: images[{i}]")
        if key in by_image:
            raise DataError(f"{path}: images[{i}]: image id {key} appears twice; give an unchanged {WHAT}.")
        by_image[key] = []
    for i, annotation in enumerate(data["annotations"]):
        where = f"{path}: annotations[{i}]"
        _field(annotation, "id", int, where)
        if not _field(annotation, "caption", str, where).strip():
            raise DataError(f"{where}: the caption is empty; give an unchanged {WHAT}.")
        owner = by_image.get(_field(annotation, "image_id", int, where))
        if owner is None:
            raise DataError(f"{where}: image_id {annotation['image_id']} is not among the images; give {WHAT}.")
        owner.append(annotation)
    bare = sorted(key for key, captions in by_image.items() if not captions)
    if bare:
        raise DataError(f"{path}: image {bare[0]} has no caption; give an unchanged {WHAT}.")
    return {key: sorted(captions, key=lambda a: int(a["id"])) for key, captions in by_image.items()}


def _field(entry: Any, key: str, kind: type, where: str) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: {key} = {value!r} must be of type {kind.__name__}; give an unchanged {WHAT}.")
    return value


def _choose_images(images: Sequence[int], count: int | None, seed: int | None) -> list[int]:
    if count is None or seed is None:
        return list(images[:count])
    return sorted(sorted(images, key=lambda image: _draw(seed, "image", image))[:count])


def _choose_caption(captions: Sequence[Annotation], policy: str, seed: int | None) -> Annotation:
    pick: dict[str, Callable[[], Annotation]] = {
        "first": lambda: captions[0],
        "longest": lambda: max(captions, key=lambda a: len(a["caption"])),
        "random": lambda: min(captions[:NUM_RANDOM], key=lambda a: _draw(seed, "caption", a["id"])),
    }
    return pick[policy]()


def _draw(seed: int | None, kind: str, key: int) -> bytes:
    """A number that depends on nothing but seed and id: not on order, count or a library's random stream."""
    return hashlib.sha256(f"{seed}/{kind}/{key}".encode()).digest()


def _prompt(image: int, annotation: Annotation, policy: str, path: Path) -> Prompt:
    raw = annotation["caption"]
    metadata = {"image_id": image, "annotation_id": annotation["id"], "caption_policy": policy, "raw": raw}
    return Prompt("coco", str(image), " ".join(raw.split()), metadata)
