"""The GenEval rules (docs/metrics.md "GenEval") as pure functions over detections.

In: detections of one image and the prompt's metadata. Out: a verdict with the reason. This module knows no network,
no file and no aggregation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from evaluators.geneval.types import Detection
from mulosd.errors import ConfigError

RELATIONS = ("left of", "right of", "above", "below")

# A shrunk offset below this many pixels on both axes holds no relation.
MIN_OFFSET = 1e-3

Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Upstream's options with upstream's defaults.

    score: confidence an instance must exceed; counting: the same for the counting task. max_objects: kept instances per
    class. max_overlap: IoU from which the weaker instance is dropped; 1 keeps all. position: share of both boxes' size
    that an offset must exceed.
    """

    score: float = 0.3
    counting: float = 0.9
    max_objects: int = 16
    max_overlap: float = 1.0
    position: float = 0.1

    def __post_init__(self) -> None:
        for key in ("score", "counting", "max_overlap", "position"):
            value = getattr(self, key)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"geneval threshold {key} = {value} is out of range; allowed are 0 to 1.")
        if self.max_objects < 1:
            raise ConfigError(f"geneval max_objects = {self.max_objects} is too small; give at least 1.")

    def to_json(self) -> dict[str, float]:
        """A JSON-serialisable form."""
        return asdict(self)


class Verdict(NamedTuple):
    """correct: all clauses hold; reason: newline-joined failures, empty when correct."""

    correct: bool
    reason: str


def select_instances(
    detections: Iterable[Detection], tag: str, thresholds: Thresholds | None = None
) -> dict[str, list[Detection]]:
    """Kept instances by class, most confident first; classes without any are absent."""
    limits = thresholds or Thresholds()
    floor = limits.counting if tag == "counting" else limits.score
    by_class: dict[str, list[Detection]] = {}
    for found in sorted(detections, key=lambda d: -d.score):
        if found.score > floor:
            by_class.setdefault(found.name, []).append(found)
    return {name: _suppress(found[: limits.max_objects], limits.max_overlap) for name, found in by_class.items()}


def relations(subject: Box, anchor: Box, threshold: float = 0.1) -> tuple[str, ...]:
    """Relations that `subject` holds to `anchor`, in RELATIONS' order; a diagonal holds two."""
    a, b = np.asarray(subject, np.float64).reshape(2, 2), np.asarray(anchor, np.float64).reshape(2, 2)
    offset = (a[0] + a[1] - b[0] - b[1]) / 2
    sizes = (a[1] - a[0]) + (b[1] - b[0])
    shrunk = np.sign(offset) * np.maximum(np.abs(offset) - threshold * sizes, 0.0)
    if (np.abs(shrunk) < MIN_OFFSET).all():
        return ()
    x, y = shrunk / np.linalg.norm(offset)
    return tuple(word for word, holds in zip(RELATIONS, (x < -0.5, x > 0.5, y < -0.5, y > 0.5), strict=True) if holds)


def judge(
    objects: Mapping[str, Sequence[Detection]],
    metadata: Mapping[str, Any],
    color_of: Callable[[Detection], str],
    *,
    position_threshold: float = 0.1,
) -> Verdict:
    """The verdict for one image.

    objects: kept instances by class, most confident first (`select_instances`). metadata: {"include": [clause],
    "exclude": [clause]} with clauses {"class", "count", "color"?, "position"?: [relation, index of an earlier clause]}.
    color_of is asked for the `count` most confident instances of a clause that names a colour, for no other.
    """
    reasons: list[str] = []
    groups: list[list[Detection] | None] = []
    for clause in metadata.get("include", ()):
        found = list(objects.get(clause["class"], ()))[: clause["count"]]
        problem = _include_problem(clause, found, groups, color_of, position_threshold)
        groups.append(None if problem else found)
        if problem:
            reasons.append(problem)
    for clause in metadata.get("exclude", ()):
        num_found = len(objects.get(clause["class"], ()))
        if num_found >= clause["count"]:
            reasons.append(f"expected {clause['class']}<{clause['count']}, found {num_found}")
    return Verdict(not reasons, "\n".join(reasons))


def _include_problem(
    clause: Mapping[str, Any],
    found: Sequence[Detection],
    groups: Sequence[Sequence[Detection] | None],
    color_of: Callable[[Detection], str],
    threshold: float,
) -> str:
    name, count = clause["class"], clause["count"]
    if len(found) < count:
        return f"expected {name}>={count}, found {len(found)}"
    if "color" in clause:
        problem = _color_problem(clause, [color_of(one) for one in found])
        if problem:
            return problem
    if "position" in clause:
        return _position_problem(clause, found, groups, threshold)
    return ""


def _color_problem(clause: Mapping[str, Any], read: Sequence[str]) -> str:
    asked = clause["color"]
    if read.count(asked) >= clause["count"]:
        return ""
    others = ", ".join(f"{read.count(color)} {color}" for color in dict.fromkeys(read) if color != asked)
    return f"expected {asked} {clause['class']}>={clause['count']}, found {read.count(asked)} {asked}; and {others}"


def _position_problem(
    clause: Mapping[str, Any],
    found: Sequence[Detection],
    groups: Sequence[Sequence[Detection] | None],
    threshold: float,
) -> str:
    relation, target = clause["position"]
    anchors = groups[target]
    if anchors is None:
        return f"no target for {clause['class']} to be {relation}"
    for subject in found:
        for anchor in anchors:
            held = relations(subject.box, anchor.box, threshold)
            if relation not in held:
                seen = " and ".join(held) or "no side of"
                return f"expected {clause['class']} {relation} target, found {seen} target"
    return ""


def _suppress(ordered: Sequence[Detection], max_overlap: float) -> list[Detection]:
    if max_overlap >= 1.0:
        return list(ordered)
    kept: list[Detection] = []
    for one in ordered:
        if all(_iou(one.box, other.box) < max_overlap for other in kept):
            kept.append(one)
    return kept


def _iou(a: Box, b: Box) -> float:
    """Intersection over union where a box covers its last pixel too: side = x1 - x0 + 1, as upstream."""
    common = (max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
    shared = _area(common)
    return shared / (_area(a) + _area(b) - shared)


def _area(box: Box) -> float:
    return max(box[2] - box[0] + 1.0, 0.0) * max(box[3] - box[1] + 1.0, 0.0)
