"""DPG-Bench: upstream's rules over any question answerer, and the evaluator that aggregates them."""

from evaluators.dpg.evaluator import DpgEvaluator, Vqa
from evaluators.dpg.rules import CATEGORIES, Policy, Question, after_dependency, is_yes, parse_questions

__all__ = [
    "CATEGORIES",
    "DpgEvaluator",
    "Policy",
    "Question",
    "Vqa",
    "after_dependency",
    "is_yes",
    "parse_questions",
]
