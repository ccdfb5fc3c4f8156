"""Fréchet distance between the features of decoded and of reference images. Named for its network, never "FID".

The float64 moments are derived once from the merged features, in torchmetrics' FrechetInceptionDistance with our trace
term (evaluators.features.effnet). Numbers compare only at equal n, reference and network (docs/metrics.md), which the
protocol holds. No bootstrap: resampling lowers the effective n and biases upwards.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from evaluators.features.base import FeatureEvaluator, Features, FeatureState
from evaluators.types import Metric

Matrix = npt.NDArray[np.float64]


class FrechetEvaluator(FeatureEvaluator):
    """`fd_<network>` of the decoded images against a reference."""

    name = "frechet"
    version = "1"
    source = "features"

    def protocol(self) -> dict[str, Any]:
        """Network, reference and the form of the statistics."""
        return {**super().protocol(), "statistics": "float64 moments, ddof 1, symmetric trace term"}

    def finalize(self, state: FeatureState) -> list[Metric]:
        """One metric; null below two images on a side, where no covariance exists."""
        sets = self.sets(state)
        n, n_reference = len(sets.decoded), len(sets.reference)
        value, reason = None, f"needs two images or more on each side, has {n} and {n_reference}"
        if min(n, n_reference) >= 2:
            value, reason = frechet_through_torchmetrics(sets.decoded, sets.reference), ""
        protocol = {**self.protocol(), "n_reference": n_reference, "paired": self.is_paired}
        width = sets.decoded.shape[1]
        if min(n, n_reference) <= width:
            protocol["note"] = f"n is not above the {width} features: singular covariance; compare at equal n only"
        return [
            Metric(
                name=f"fd_{self._network.name}",
                value=value,
                direction="lower",
                unit="squared feature distance",
                n=n,
                n_missing=sets.num_missing,
                version=self.version,
                protocol=protocol,
                reason=reason,
            )
        ]


def frechet_distance(mean_a: Matrix, cov_a: Matrix, mean_b: Matrix, cov_b: Matrix) -> float:
    """|m_a - m_b|^2 + tr A + tr B - 2 tr (A B)^(1/2) in float64.

    The trace term is taken from the symmetric R^T B R with A = R R^T: real and finite for singular covariances too.
    Rounding below 0 is 0; anything further below raises ArithmeticError.
    """
    values, vectors = np.linalg.eigh(cov_a)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    product = root.T @ cov_b @ root
    shared = np.sqrt(np.maximum(np.linalg.eigvalsh((product + product.T) / 2), 0.0)).sum()
    offset = mean_a - mean_b
    spread = np.trace(cov_a) + np.trace(cov_b)
    distance = float(offset @ offset + spread - 2.0 * shared)
    # Between equal singular covariances the rounding was seen to be 1e-7 of the spread.
    if not distance >= -1e-4 * spread:
        raise ArithmeticError(f"the distance came out as {distance}: the moments are no covariances")
    return max(distance, 0.0)


class FrechetDistance(FrechetInceptionDistance):
    """torchmetrics' interface and float64 sums with our trace term, which is real for singular covariances too.

    Merge with `merge_state` only into a metric that was updated: torchmetrics sets the result's dtype on update.
    """

    def compute(self) -> Tensor:
        """The distance, float64 []."""
        mean_a, cov_a = _moments(self.real_features_sum, self.real_features_cov_sum, self.real_features_num_samples)
        mean_b, cov_b = _moments(self.fake_features_sum, self.fake_features_cov_sum, self.fake_features_num_samples)
        return torch.tensor(frechet_distance(mean_a, cov_a, mean_b, cov_b), dtype=torch.float64)


class _FeaturesAsTheyAre(nn.Module):
    """A network for features that were computed before."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def frechet_through_torchmetrics(
    decoded: Features, reference: Features, *, metric: type[FrechetInceptionDistance] = FrechetDistance
) -> float:
    """The distance of two feature sets [n, D], n >= 2, by a metric of torchmetrics' interface."""
    if min(len(decoded), len(reference)) < 2:
        raise ValueError(f"{len(decoded)} and {len(reference)} feature vectors; a covariance needs two")
    distance = metric(feature=_FeaturesAsTheyAre(decoded.shape[1]), sync_on_compute=False)
    distance.update(torch.from_numpy(reference), real=True)
    distance.update(torch.from_numpy(decoded), real=False)
    return float(distance.compute())


def _moments(total: Tensor, outer: Tensor, count: Tensor) -> tuple[np.ndarray, np.ndarray]:
    n = int(count)
    mean = (total / n).cpu().numpy()
    return mean, (outer.cpu().numpy() - n * np.outer(mean, mean)) / (n - 1)
