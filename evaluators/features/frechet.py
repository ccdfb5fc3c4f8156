"""Fréchet distance between the features of decoded and of reference images. Named for its network, never "FID".

The float64 moments are derived once from the merged features, in torchmetrics' FrechetInceptionDistance with our trace
term (evaluators.features.frechet_statistic). Numbers compare only at equal n, reference and network
(docs/metrics.md), which the protocol holds. No bootstrap: resampling lowers the effective n and biases upwards.
"""

from typing import Any

from evaluators.features.base import FeatureEvaluator, FeatureState
from evaluators.types import Metric


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
            # Not above: a plan or a dry run builds the evaluator, and torchmetrics takes seconds to load.
            from evaluators.features.frechet_statistic import frechet_through_torchmetrics

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
