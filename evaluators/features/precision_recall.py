"""Improved precision and recall of decoded images (Kynkäänniemi et al. 2019), named for the feature network.

Each set of features spans a manifold: the union of balls around its points, each as wide as the distance to the
point's k-th nearest neighbour in the set. Precision is the share of decoded images inside the reference manifold,
recall the share of reference images inside the decoded one. Distances are float64 and computed from differences, so
equal points have distance exactly 0. Both fall with n being small, so they compare at equal n only.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from evaluators.features.base import FeatureEvaluator, Features, FeatureState
from evaluators.features.kid import distinct_rows
from evaluators.statistics.intervals import bootstrap_proportion, describe_bootstrap
from evaluators.types import Metric
from mulosd.errors import ConfigError, unknown_name
from mulosd.types import Bools, Floats

NEIGHBOURS = 3

# closed: a point on a ball's surface is inside (the paper's eq. 1); open: it is not (LANTERN's script).
Boundary = Literal["closed", "open"]

_BLOCK = 256  # rows of a distance matrix held at a time


class PrecisionRecallEvaluator(FeatureEvaluator):
    """`precision_<network>` and `recall_<network>` from the features that the Fréchet distance rests on."""

    name = "precision_recall"
    version = "1"
    source = "features"

    def __init__(self, *args: Any, neighbours: int = NEIGHBOURS, boundary: Boundary = "closed", **options: Any) -> None:
        super().__init__(*args, **options)
        if neighbours < 1:
            raise ConfigError(f"evaluator precision_recall: neighbours = {neighbours} is too small; give at least 1.")
        if boundary not in get_args(Boundary):
            raise unknown_name("boundary", boundary, get_args(Boundary), "evaluator precision_recall")
        self._neighbours, self._boundary = neighbours, boundary

    def protocol(self) -> dict[str, Any]:
        """Network, reference, neighbours and the balls' boundary."""
        return {**super().protocol(), "neighbours": self._neighbours, "boundary": self._boundary}

    def finalize(self, state: FeatureState) -> list[Metric]:
        """Both shares; null where a side has too few points to have k neighbours."""
        sets = self.sets(state)
        # Every image of a prompt brings the same reference; repetitions would shrink the balls to nothing.
        reference = distinct_rows(sets.reference)
        sizes = (len(sets.decoded), len(reference))
        if min(sizes) <= self._neighbours:
            reason = (
                f"needs more than {self._neighbours} images on each side to have {self._neighbours} neighbours, "
                f"has {sizes[0]} and {sizes[1]}"
            )
            metrics = [self._metric(name, {}, sets.num_missing, sizes, reason) for name in ("precision", "recall")]
            return self._with_missing(metrics, state)
        options: dict[str, Any] = {"neighbours": self._neighbours, "boundary": self._boundary}
        precise = in_manifold(sets.decoded, reference, **options)
        recalled = in_manifold(sets.reference, sets.decoded, **options)
        inside = {
            "precision": dict(zip(sets.decoded_ids, map(float, precise), strict=True)),
            "recall": dict(zip(sets.reference_ids, map(float, recalled), strict=True)),
        }
        metrics = [self._metric(name, scores, sets.num_missing, sizes, "") for name, scores in inside.items()]
        return self._with_missing(metrics, state)

    def _with_missing(self, metrics: list[Metric], state: FeatureState) -> list[Metric]:
        """Precision judges decoded images, recall the references, of which none is missing."""
        precision, recall = metrics
        reason = "the image is missing, or its features are not finite"
        return [replace(precision, missing=dict.fromkeys(sorted(state.missing), reason)), recall]

    def _metric(
        self, name: str, scores: dict[str, float], num_missing: int, sizes: tuple[int, int], reason: str
    ) -> Metric:
        estimate = bootstrap_proportion(scores) if scores else None
        return Metric(
            name=f"{name}_{self._network.name}",
            value=estimate.value if estimate else None,
            direction="higher",
            unit="share of decoded images" if name == "precision" else "share of reference images",
            n=len(scores),
            n_missing=num_missing,
            version=self.version,
            interval=estimate.interval if estimate else None,
            protocol={
                **self.protocol(),
                "n_decoded": sizes[0],
                "n_reference": sizes[1],
                "paired": self.is_paired,
                "interval": {**describe_bootstrap(proportion=True), "given": "the other side's manifold"},
            },
            reason=reason or (estimate.reason if estimate else ""),
            per_sample=scores,
        )


def in_manifold(
    queries: Features, points: Features, *, neighbours: int = NEIGHBOURS, boundary: Boundary = "closed"
) -> Bools:
    """Whether each query [q, D] is in a ball around one of the points [n, D]: [q].

    A ball reaches to its point's `neighbours`-th nearest other point. Raises ValueError when n <= neighbours.
    """
    radii = neighbour_distances(points, neighbours)
    blocks = [
        (distances <= radii if boundary == "closed" else distances < radii).any(axis=1)
        for distances in _distances(queries, points)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0, bool)


def neighbour_distances(points: Features, neighbours: int) -> Floats:
    """Distance of each point [n, D] to its `neighbours`-th nearest other point, [n]."""
    if len(points) <= neighbours:
        raise ValueError(f"{len(points)} points have no {neighbours} neighbours each")
    # Each point is its own nearest at distance 0, so the k-th other one is number k from 0.
    return np.concatenate(
        [np.partition(block, neighbours, axis=1)[:, neighbours] for block in _distances(points, points)]
    )


def _distances(a: Features, b: Features) -> Iterator[Floats]:
    """Euclidean distances in blocks of rows, [block, m]."""
    from scipy.spatial.distance import cdist

    wide = b.astype(np.float64)
    for start in range(0, len(a), _BLOCK):
        yield cdist(a[start : start + _BLOCK].astype(np.float64), wide)
