"""Evaluators as a sweep uses them: the registry's, with the references that only the pipeline can give.

Fréchet distance, KID, precision and recall compare with the ground-truth renders of the same scenes, at the target's
image size. Prompts without a scene have no reference here, and then these metrics are null with that reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np

from evaluators.state import SampleState
from evaluators.types import Metric, Row
from pipelines.work.tasks import EvaluatorSpec

# Raised whenever SceneReference draws the same scene differently.
REFERENCE_VERSION = "1"

# Evaluators that compare with reference images -> their metrics and which values are better.
REFERENCED: dict[str, tuple[tuple[str, Literal["higher", "lower"]], ...]] = {
    "features": (),
    "frechet": (("fd_effnet", "lower"),),
    "kid": (("kid_effnet", "lower"), ("kid_effnet_full", "lower")),
    "precision_recall": (("precision_effnet", "higher"), ("recall_effnet", "higher")),
}


@dataclass(frozen=True)
class SceneReference:
    """The ground-truth image of each row's scene, `image_px` wide."""

    image_px: int

    def __call__(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """One uint8 RGB image per row."""
        from mulosd.scenes.render import render
        from mulosd.scenes.world import scene_from_json
        from mulosd.stage.read import metadata_of

        return [render(scene_from_json(metadata_of(row)["scene"]), self.image_px) for row in rows]

    def identity(self) -> dict[str, Any]:
        """What it draws."""
        return {"kind": "render of the prompt's scene", "version": REFERENCE_VERSION, "image_px": self.image_px}


class WithoutReference:
    """Stands for an evaluator that has nothing to compare with: null metrics with the reason."""

    version = "1"
    state = SampleState

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def protocol(self) -> dict[str, Any]:
        """Why there is no value."""
        return {"reason": self._reason}

    def prepare(self) -> None:
        """Nothing to load."""

    def score(self, rows: Sequence[Row]) -> SampleState:
        """Nothing."""
        return SampleState()

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        """Nothing."""
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        """The null metrics."""
        return [
            Metric(metric, None, direction, "", 0, 0, self.version, reason=self._reason)
            for metric, direction in REFERENCED[self.name]
        ]


def scorer_spec(name: str, *, registry: str, image_px: int, has_scenes: bool) -> EvaluatorSpec:
    """How a worker builds the evaluator `name` for a target of this image size."""
    context: tuple[tuple[str, Any], ...] = (("registry", registry),)
    if name in REFERENCED:
        context += (("image_px", image_px), ("has_scenes", has_scenes))
    return EvaluatorSpec("pipelines.work.scorers:build_scorer", name, context)


def build_scorer(name: str, *, registry: str, image_px: int = 0, has_scenes: bool = False) -> Any:
    """The evaluator; has_scenes: every prompt of the sweep carries its scene."""
    build = import_module(registry).build_evaluator
    if name not in REFERENCED:
        return build(name)
    if not has_scenes:
        reason = "these prompts have no reference images here; only scenes are rendered"
        return WithoutReference(name, reason)
    reference = SceneReference(image_px)
    return build(name, reference=reference, reference_identity=reference.identity())
