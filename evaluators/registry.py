"""Evaluators by name, also of other packages (entry points `mulosd.evaluators`), built only when asked for.

Importing this module loads no network and no torch.
"""

import inspect
from collections.abc import Callable
from typing import Any

from evaluators.types import Evaluator
from mulosd.errors import ConfigError, EnvironmentProblem, unknown_name
from mulosd.registry import Registry

# What an evaluator consists of (`evaluators.types.Evaluator`).
PARTS = ("name", "version", "state", "protocol", "prepare", "score", "merge", "finalize")


def build_evaluator(name: str, **context: Any) -> Evaluator:
    """The evaluator `name` with the settings it takes (the keywords of its `build_*` function below).

    Raises ConfigError for an unknown name or setting, with the nearest, and for a setting that is required and absent.
    """
    if name not in EVALUATORS:
        raise unknown_name("evaluator", name, EVALUATORS)
    build = EVALUATORS[name]
    known = inspect.signature(build).parameters
    for key in context:
        if key not in known:
            raise unknown_name("setting", key, known, f"evaluator {name}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in context:
            raise ConfigError(f"evaluator {name}: the setting {key!r} is required; give it.")
    built = build(**context)
    if lacking := [part for part in PARTS if not hasattr(built, part)]:  # an evaluator of another package
        raise EnvironmentProblem(
            f"evaluator {name!r} does not have {', '.join(lacking)} (evaluators.types.Evaluator); correct or uninstall "
            "its package."
        )
    return built


def build_geneval(
    *,
    detector: Any = None,
    color_classifier: Any = None,
    thresholds: Any = None,
    colors: Any = None,
    color_identity: Any = None,
) -> Evaluator:
    """GenEval's rules; without a detector the one for scenes, without a classifier the detector's own `color`."""
    from evaluators.geneval import GenEvalEvaluator

    backend = _scenes_detector() if detector is None else detector
    if color_classifier is None:
        color_classifier = backend.color
        colors = getattr(backend, "colors", None) if colors is None else colors
    return GenEvalEvaluator(
        backend, color_classifier, thresholds=thresholds, colors=colors, color_identity=color_identity
    )


def build_detail(*, detector: Any = None, thresholds: Any = None) -> Evaluator:
    """The detail metric; without a detector the one for scenes."""
    from evaluators.detail import DetailEvaluator

    return DetailEvaluator(_scenes_detector() if detector is None else detector, thresholds=thresholds)


def build_dpg(*, vqa: Any = None, policy: Any = None) -> Evaluator:
    """DPG-Bench's rules; without an answerer the one for scenes, without a policy upstream's."""
    from evaluators.dpg import DpgEvaluator

    if vqa is None:
        from evaluators.dpg.scenes import ScenesVqa

        vqa = ScenesVqa(_scenes_detector())
    return DpgEvaluator(vqa, policy=policy)


def build_features(
    *, reference: Any, reference_identity: Any = None, network: Any = None, device: str = "cpu"
) -> Evaluator:
    """The features that the three evaluators below share; without a network EfficientNet-Lite0 on `device`."""
    from evaluators.features.base import FeatureEvaluator

    return FeatureEvaluator(_network(network, device), reference=reference, reference_identity=reference_identity)


def build_frechet(
    *, reference: Any, reference_identity: Any = None, network: Any = None, device: str = "cpu"
) -> Evaluator:
    """The Fréchet distance of the features."""
    from evaluators.features.frechet import FrechetEvaluator

    return FrechetEvaluator(_network(network, device), reference=reference, reference_identity=reference_identity)


def build_kid(
    *,
    reference: Any,
    reference_identity: Any = None,
    network: Any = None,
    device: str = "cpu",
    subsets: int = 100,
    subset_size: int = 100,
    seed: int = 0,
) -> Evaluator:
    """KID of the features over `subsets` subsets of `subset_size` (upstream: 1,000), and over all pairs."""
    from evaluators.features.kid import KidEvaluator

    return KidEvaluator(
        _network(network, device),
        reference=reference,
        reference_identity=reference_identity,
        subsets=subsets,
        subset_size=subset_size,
        seed=seed,
    )


def build_precision_recall(
    *,
    reference: Any,
    reference_identity: Any = None,
    network: Any = None,
    device: str = "cpu",
    neighbours: int = 3,
    boundary: Any = "closed",
) -> Evaluator:
    """Improved precision and recall of the features."""
    from evaluators.features.precision_recall import PrecisionRecallEvaluator

    return PrecisionRecallEvaluator(
        _network(network, device),
        reference=reference,
        reference_identity=reference_identity,
        neighbours=neighbours,
        boundary=boundary,
    )


def build_speed(*, n_target_tokens: int | None = None) -> Evaluator:
    """The speed counters."""
    from evaluators.speed import SpeedEvaluator

    return SpeedEvaluator(n_target_tokens=n_target_tokens)


def _problem(name: str, found: Any) -> str | None:
    return None if callable(found) else "it cannot be called; an evaluator's entry is `build(**settings)`"


# An entry `build(**settings)` returns the evaluator; its keywords are the settings that it takes.
EVALUATORS: Registry[Callable[..., Evaluator]] = Registry(
    "evaluator",
    "mulosd.evaluators",
    {
        name: f"evaluators.registry:build_{name}"
        for name in ("detail", "dpg", "features", "frechet", "geneval", "kid", "precision_recall", "speed")
    },
    _problem,
    planned={
        "fid": "the Inception network and its reference statistics are missing; `frechet` is a distance on other "
        "features",
        "hpsv2": "its network and weights are missing",
        "clipscore": "its network and weights are missing",
        "geneval-mask2former": "GenEval's detector of real objects is missing; `geneval` judges rendered scenes only",
        "dpg-mplug": "DPG-Bench's question answerer is missing; `dpg` answers for rendered scenes only",
    },
)


def _scenes_detector() -> Any:
    from evaluators.scenes.detector import ScenesDetector

    return ScenesDetector()


def _network(network: Any, device: str) -> Any:
    if network is not None:
        return network
    from evaluators.features.effnet import EffNetLite0Network

    return EffNetLite0Network(device=device)
