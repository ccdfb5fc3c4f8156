"""Names and settings are strict, and building is lazy."""

from types import SimpleNamespace

import pytest

from evaluators.registry import EVALUATORS, build_evaluator
from mulosd.errors import ConfigError, EnvironmentProblem
from tests.unit.evaluators.helpers import LookupDetector, png, row

DETECTOR = LookupDetector({})


def test_every_name_builds_an_evaluator_with_that_name() -> None:
    reference = {"reference": lambda rows: [], "reference_identity": {"source": "none"}}
    context = {
        "geneval": {"detector": DETECTOR},
        "detail": {"detector": DETECTOR},
        "dpg": {},
        "features": reference,
        "frechet": reference,
        "kid": reference,
        "precision_recall": reference,
        "speed": {},
    }
    assert context.keys() == EVALUATORS.keys()
    for name, settings in context.items():
        built = build_evaluator(name, **settings)
        assert built.name == name
        built.prepare()
        state = built.score([])
        metrics = built.finalize(built.merge(state, state))
        assert {metric.value for metric in metrics} == (set() if name == "features" else {None})
        assert all(metric.reason for metric in metrics)


def test_geneval_takes_the_detectors_colors() -> None:
    built = build_evaluator("geneval", detector=DETECTOR)
    asked = {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": "teal"}]}
    metrics = built.finalize(built.score([row("a", asked, image=png())]))
    assert "teal" in metrics[0].reason


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("geneva", {}, "Did you mean 'geneval'"),
        ("detail", {"detectr": DETECTOR}, "Did you mean 'detector'"),
        ("frechet", {}, "'reference' is required"),
        ("kid", {"reference": len, "reference_identity": {"a": 1}, "subset_size": 1}, "subset_size = 1 is too small"),
        ("precision_recall", {"reference": len, "reference_identity": {"a": 1}, "boundary": "close"}, "'closed'"),
        ("precision_recall", {"reference": len, "reference_identity": {"a": 1}, "neighbours": 0}, "at least 1"),
        ("speed", {"detector": DETECTOR}, "unknown setting 'detector'"),
    ],
)
def test_wrong_names_and_settings(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_evaluator(name, **settings)


def test_an_evaluator_from_outside_that_lacks_something_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVALUATORS._loaded, "speed", lambda: SimpleNamespace(name="speed", version="1"))
    with pytest.raises(EnvironmentProblem, match="evaluator 'speed' does not have state, protocol, prepare, score"):
        build_evaluator("speed")
