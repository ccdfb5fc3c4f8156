"""Rows and a detector with a known answer: pixels are ignored, detections are looked up by the image's corner value."""

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from evaluators.geneval import Detection


def png(value: int = 0, size: int = 8) -> bytes:
    """A flat grey picture."""
    return png_of(np.full((size, size, 3), value, np.uint8))


def png_of(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def row(
    prompt_id: str,
    metadata: dict[str, Any] | None,
    *,
    index: int = 0,
    image: bytes | None = None,
    error: str | None = None,
    benchmark: str = "geneval",
    **counters: Any,
) -> dict[str, Any]:
    return {
        "sample_id": f"{benchmark}/{prompt_id}/{index}",
        "prompt_id": prompt_id,
        "prompt": f"prompt {prompt_id}",
        "image": {"bytes": image, "path": None},
        "error": error,
        "metadata": None if metadata is None else json.dumps(metadata),
        **counters,
    }


class LookupDetector:
    """Detections by the grey value of the top left pixel; colour and pattern words by the detection's box."""

    colors = ("red", "blue")
    patterns = ("striped", "dotted")

    def __init__(
        self,
        answers: dict[int, list[Detection]],
        *,
        classes: Sequence[str] = ("dog", "cat", "cup"),
        looks: dict[tuple[float, float, float, float], tuple[str, str]] | None = None,
    ) -> None:
        self._answers = answers
        self._looks = looks or {}
        self.classes = tuple(classes)

    def detect(self, image: np.ndarray) -> list[Detection]:
        return self._answers.get(int(image[0, 0, 0]), [])

    def color(self, image: np.ndarray, detection: Detection) -> str:
        return self._looks.get(detection.box, ("red", "plain"))[0]

    def pattern(self, image: np.ndarray, detection: Detection) -> str:
        return self._looks.get(detection.box, ("red", "plain"))[1]

    def identity(self) -> dict[str, Any]:
        return {"name": "lookup"}
