"""Reading scenes from pixels only: shapes with graded confidence, colours, patterns."""

from evaluators.scenes.detector import ScenesDetector

__all__ = ["ScenesDetector"]
