"""Sampling of scenes: layouts, captions in GenEval's six task forms, exact labels.

Positions and sizes are on a lattice of 1/32 of the image side (one pixel of the lowest
resolution). Two splits of captions exist for the task forms with a large caption space
(`HASHED_TAGS`): captions whose hash falls into bucket 0 are never drawn for training and are the
only ones drawn for evaluation. The other forms have fewer than a hundred captions, all trained on.
"""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mulosd.errors import ConfigError, unknown_name
from mulosd.scenes import vocabulary as voc
from mulosd.types import GENEVAL_TASKS

SPLITS = ("val", "test", "heldout")
HASHED_TAGS = frozenset({"two_object", "position", "color_attr"})
EVAL_BUCKETS = 5
PATTERN_SHARE = 0.4  # of objects, in every task but counting
DENSE_SHARE = 0.4  # of training captions
LATTICE = 32


@dataclass(frozen=True)
class SceneObject:
    """One object; cx, cy (centre) and half (half extent) in units of 1/32 of the image side."""

    shape: str
    color: str
    pattern: str | None
    cx: int
    cy: int
    half: int


@dataclass(frozen=True)
class Scene:
    """Objects on a background, the GenEval-style task tag and the caption."""

    tag: str
    background: str
    objects: tuple[SceneObject, ...]
    caption: str

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, read back by `scene_from_json`."""
        return asdict(self)


def scene_from_json(data: dict[str, Any]) -> Scene:
    """Inverse of `Scene.to_json`."""
    objects = tuple(SceneObject(**entry) for entry in data["objects"])
    return Scene(data["tag"], data["background"], objects, data["caption"])


def sample_training_scene(rng: np.random.Generator) -> Scene:
    """A scene for training: trained (shape, colour) pairs and captions outside the evaluation bucket."""
    while True:
        tag = GENEVAL_TASKS[rng.choice(6, p=(0.10, 0.18, 0.16, 0.12, 0.20, 0.24))]
        scene = sample_scene(rng, tag, dense=bool(rng.random() < DENSE_SHARE), heldout=False)
        if tag not in HASHED_TAGS or not is_eval_caption(scene.caption):
            return scene


def sample_eval_scene(rng: np.random.Generator, tag: str, *, heldout: bool) -> Scene:
    """A scene with a caption in the exact task form; `heldout`: at least one held-out pair is named."""
    while True:
        scene = sample_scene(rng, tag, dense=False, heldout=heldout)
        if tag not in HASHED_TAGS or is_eval_caption(scene.caption):
            return scene


def sample_scenes(split: str, count: int, seed: int) -> list[Scene]:
    """`count` scenes of a split, tags in rotation. `heldout` draws only the two tasks that name colours."""
    if split not in SPLITS:
        raise unknown_name("scenes split", split, SPLITS)
    if count < 1:
        raise ConfigError(f"scenes count = {count} is too small; give at least 1.")
    rng = np.random.default_rng([SPLITS.index(split), seed])
    tags = ("colors", "color_attr") if split == "heldout" else GENEVAL_TASKS
    return [sample_eval_scene(rng, tags[i % len(tags)], heldout=split == "heldout") for i in range(count)]


def sample_prompts(split: str, count: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """(caption, metadata) pairs; metadata has GenEval's keys, an optional "pattern" per clause, and the scene."""
    return [(scene.caption, scene_metadata(scene)) for scene in sample_scenes(split, count, seed)]


def scene_metadata(scene: Scene) -> dict[str, Any]:
    """Metadata in the form of GenEval's evaluation_metadata.jsonl: only what the caption names."""
    objects = scene.objects
    if scene.tag == "counting":
        count = len(objects)
        include = [{"class": objects[0].shape, "count": count}]
        exclude = [{"class": objects[0].shape, "count": count + 1}]
        return {"tag": scene.tag, "include": include, "exclude": exclude, "scene": scene.to_json()}
    named_color = scene.tag in ("colors", "color_attr")
    clauses = [_clause(obj, named_color) for obj in objects]
    if scene.tag == "position":
        clauses = [clauses[1], {**clauses[0], "position": [relation(objects[0], objects[1]), 0]}]
    return {"tag": scene.tag, "include": clauses, "scene": scene.to_json()}


def _clause(obj: SceneObject, named_color: bool) -> dict[str, Any]:
    clause: dict[str, Any] = {"class": obj.shape, "count": 1}
    if named_color:
        clause["color"] = obj.color
    if obj.pattern:
        clause["pattern"] = obj.pattern
    return clause


def is_eval_caption(caption: str) -> bool:
    """Whether a caption is in the hash bucket that training never shows."""
    return hashlib.sha256(caption.encode()).digest()[0] % EVAL_BUCKETS == 0


def sample_scene(rng: np.random.Generator, tag: str, *, dense: bool, heldout: bool) -> Scene:
    """A scene of the task `tag` with any caption; dense: the caption names everything; heldout: as of
    `sample_eval_scene`."""
    background = tuple(voc.BACKGROUNDS)[rng.integers(len(voc.BACKGROUNDS))]
    if tag == "counting":
        objects = _count_layout(rng, int(rng.integers(2, 5)))
    elif tag in ("single_object", "colors"):
        objects = (_single(rng, heldout),)
    else:
        objects = _pair_layout(rng, heldout)
    caption = _dense_caption(tag, objects, background) if dense else _short_caption(tag, objects)
    return Scene(tag, background, objects, caption)


def _look(rng: np.random.Generator, heldout: bool, avoid: tuple[str, str] | None = None) -> tuple[str, str]:
    """A (shape, colour) pair, different in both from `avoid`."""
    while True:
        shape = voc.SHAPES[rng.integers(len(voc.SHAPES))]
        color = tuple(voc.COLORS)[rng.integers(len(voc.COLORS))]
        clash = avoid is not None and (shape == avoid[0] or color == avoid[1])
        if ((shape, color) in voc.HELD_OUT) == heldout and not clash:
            return shape, color


def _pattern(rng: np.random.Generator) -> str | None:
    return voc.PATTERNS[rng.integers(len(voc.PATTERNS))] if rng.random() < PATTERN_SHARE else None


def _single(rng: np.random.Generator, heldout: bool) -> SceneObject:
    shape, color = _look(rng, heldout)
    half = int(rng.integers(8, 11))
    cx, cy = (int(v) for v in rng.integers(14, 19, size=2))
    return SceneObject(shape, color, _pattern(rng), cx, cy, half)


def _pair_layout(rng: np.random.Generator, heldout: bool) -> tuple[SceneObject, ...]:
    """Two objects side by side or one above the other; the first drawn is the one named first."""
    first = _look(rng, heldout)
    second = _look(rng, False, avoid=first)
    near, far = int(rng.integers(7, 10)), int(rng.integers(23, 26))
    along = (near, far) if rng.random() < 0.5 else (far, near)
    across = [int(v) for v in rng.integers(13, 20, size=2)]
    sideways = rng.random() < 0.5
    objects = []
    for (shape, color), a, c in zip((first, second), along, across, strict=True):
        cx, cy = (a, c) if sideways else (c, a)
        objects.append(SceneObject(shape, color, _pattern(rng), cx, cy, int(rng.integers(5, 8))))
    return tuple(objects)


def _count_layout(rng: np.random.Generator, count: int) -> tuple[SceneObject, ...]:
    """`count` equal objects, one per quadrant (two: opposite halves or a diagonal)."""
    shape, color = _look(rng, False)
    quadrants = rng.permutation(4)[:count]
    half = int(rng.integers(5, 7))
    objects = []
    for quadrant in sorted(int(q) for q in quadrants):
        row, col = divmod(quadrant, 2)
        cx, cy = 8 + 16 * col + int(rng.integers(-1, 2)), 8 + 16 * row + int(rng.integers(-1, 2))
        objects.append(SceneObject(shape, color, None, cx, cy, half))
    return tuple(objects)


def relation(a: SceneObject, b: SceneObject) -> str:
    """Where `a` is seen from `b`, by the larger distance of their centres."""
    dx, dy = a.cx - b.cx, a.cy - b.cy
    if abs(dx) >= abs(dy):
        return "left of" if dx < 0 else "right of"
    return "above" if dy < 0 else "below"


def _noun(obj: SceneObject, *, color: bool) -> str:
    words = [obj.pattern or "", obj.color if color else "", obj.shape]
    return "a " + " ".join(word for word in words if word)


def _short_caption(tag: str, objects: tuple[SceneObject, ...]) -> str:
    color = tag in ("colors", "color_attr")
    if tag == "counting":
        return f"a photo of {voc.COUNT_WORDS[len(objects)]} {voc.plural(objects[0].shape)}"
    if len(objects) == 1:
        return f"a photo of {_noun(objects[0], color=color)}"
    link = relation(*objects) if tag == "position" else "and"
    return f"a photo of {_noun(objects[0], color=color)} {link} {_noun(objects[1], color=color)}"


def _dense_caption(tag: str, objects: tuple[SceneObject, ...], background: str) -> str:
    if tag == "counting":
        body = f"{voc.COUNT_WORDS[len(objects)]} {objects[0].color} {voc.plural(objects[0].shape)}"
    elif len(objects) == 1:
        body = _noun(objects[0], color=True)
    else:
        body = f"{_noun(objects[0], color=True)} {relation(*objects)} {_noun(objects[1], color=True)}"
    return f"a photo of {body} on a {background} background"
