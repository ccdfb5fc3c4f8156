"""The statistic of the Fréchet distance, in torchmetrics' form with our trace term."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from evaluators.features.base import Features

Matrix = npt.NDArray[np.float64]


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
        raise ArithmeticError(f"the distance came out as {distance}: the moments are not covariances")
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
