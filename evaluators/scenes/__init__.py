"""Reading scenes from pixels alone: shapes with graded confidence, colours, patterns."""

from evaluators.scenes.detector import ScenesDetector
from evaluators.scenes.validate import validate

__all__ = ["ScenesDetector", "validate"]
