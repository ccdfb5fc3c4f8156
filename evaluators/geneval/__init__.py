"""GenEval: upstream's rules over any detector, and the evaluator that aggregates them."""

from evaluators.geneval.evaluator import GenEvalEvaluator, paired_overall_difference
from evaluators.geneval.rules import RELATIONS, Thresholds, Verdict, judge, relations, select_instances
from evaluators.geneval.types import ColorClassifier, Detection, Detector, PatternDetector

__all__ = [
    "RELATIONS",
    "ColorClassifier",
    "Detection",
    "Detector",
    "GenEvalEvaluator",
    "PatternDetector",
    "Thresholds",
    "Verdict",
    "judge",
    "paired_overall_difference",
    "relations",
    "select_instances",
]
