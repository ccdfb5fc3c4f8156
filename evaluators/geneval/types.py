"""What the GenEval rules see of a detector: named boxes with scores, and nothing of the network behind them.

Contract: images are uint8 RGB [H, W, 3] at this boundary, always (a detector that wants BGR swaps inside).
Boxes are (x0, y0, x1, y1) in pixels, x1 and y1 exclusive, y growing downwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mulosd.types import Image


@dataclass(frozen=True)
class Detection:
    """One found instance: class name, box in pixels, confidence in [0, 1], mask bool [H, W] where there is one."""

    name: str
    box: tuple[float, float, float, float]
    score: float
    mask: npt.NDArray[np.bool_] | None = None


@runtime_checkable
class Detector(Protocol):
    """A detector backend. It may also have `colors` and `patterns`: the words its readers can answer with."""

    @property
    def classes(self) -> Sequence[str]:
        """Every class name it can report."""
        ...

    def detect(self, image: Image) -> list[Detection]:
        """All instances in a uint8 RGB image [H, W, 3], unthresholded, in any order."""
        ...

    def identity(self) -> dict[str, Any]:
        """Name, version and weight hashes: whatever changes its answers, JSON-serialisable."""
        ...


@runtime_checkable
class PatternDetector(Detector, Protocol):
    """A detector that also reads the colour and the pattern of an instance it found."""

    def color(self, image: Image, detection: Detection) -> str:
        """The colour word of the instance."""
        ...

    def pattern(self, image: Image, detection: Detection) -> str:
        """The pattern word of the instance; any other word where it sees none."""
        ...


class ColorClassifier(Protocol):
    """Reads the colour word of one instance."""

    def __call__(self, image: Image, detection: Detection) -> str:
        """The colour word of `detection` in `image`."""
        ...
