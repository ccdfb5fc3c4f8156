"""Fréchet distance between the features of decoded and of reference images. Named for its network, never "FID".

The state is the features themselves (float32, by sample id): sums of outer products of 1280 features would weigh 13 MB
per chunk, while features merge exactly in any order and a retried sample cannot count twice. The float64 moments are
derived once, in torchmetrics' FrechetInceptionDistance with our trace term (evaluators.features). Numbers compare only
at equal n, reference and network (evaluators.md 4.4), which the protocol holds. No bootstrap: resampling lowers the
effective n and biases upwards (4.9).
"""

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evaluators.images import Image, MissingImage, row_image
from evaluators.types import Metric, Row
from mulosd.errors import DataError

Features = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
PairedReference = Callable[[Sequence[Row]], Sequence[Image]]


class FeatureNetwork(Protocol):
    """Images -> one feature vector each."""

    name: str
    num_features: int

    def identity(self) -> dict[str, Any]:
        """Weights hash, layer and preprocessing; JSON-serialisable."""
        ...

    def prepare(self) -> None:
        """Load the weights; called once per process."""
        ...

    def features(self, images: Sequence[Image]) -> Features:
        """[n, num_features] of uint8 RGB images [height, width, 3] of any sizes."""
        ...


@dataclass(frozen=True)
class FixedReference:
    """Features of one set of reference images for all cells: [n, num_features], and the network's identity."""

    features: Features
    network: Mapping[str, Any]

    @classmethod
    def of_images(cls, images: Iterable[Image], network: FeatureNetwork, *, batch: int = 64) -> "FixedReference":
        """Features of the images, `batch` at a time."""
        network.prepare()
        blocks: list[Features] = []
        waiting: list[Image] = []
        for image in images:
            waiting.append(image)
            if len(waiting) == batch:
                blocks.append(network.features(waiting))
                waiting = []
        if waiting:
            blocks.append(network.features(waiting))
        if not blocks:
            raise DataError("the set of reference images is empty; give at least two images.")
        return cls(np.concatenate(blocks), network.identity())

    @classmethod
    def load(cls, path: Path) -> "FixedReference":
        """Read what `save` wrote. Raises DataError when the file is missing or is no such archive."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                features, network = archive["features"], json.loads(str(archive["network"]))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: no archive of reference features ({error}); write it again.") from error
        if features.ndim != 2 or features.dtype != np.float32 or not np.isfinite(features).all():
            raise DataError(f"{path}: features are not finite float32 [n, features]; write the archive again.")
        return cls(features, network)

    def save(self, path: Path) -> None:
        """Write an .npz in one step: temporary file, fsync, rename."""
        buffer = io.BytesIO()
        np.savez(buffer, features=self.features, network=np.array(json.dumps(dict(self.network), sort_keys=True)))
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(buffer.getvalue())
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def identity(self) -> dict[str, Any]:
        """Number and sha256 of the features."""
        digest = hashlib.sha256(np.ascontiguousarray(self.features).tobytes()).hexdigest()
        return {"kind": "fixed", "n": len(self.features), "sha256": digest}


@dataclass(frozen=True)
class FrechetState:
    """Features by sample id, decoded and reference, and the ids without a picture. The empty state is the identity."""

    decoded: Mapping[str, Features] = field(default_factory=dict)
    reference: Mapping[str, Features] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    def merge(self, other: "FrechetState") -> "FrechetState":
        """Both states' features. Raises ValueError when they disagree about a sample."""
        if self.missing & other.decoded.keys() or other.missing & self.decoded.keys():
            raise ValueError("a sample is missing in one state and scored in the other")
        return FrechetState(
            _join(self.decoded, other.decoded), _join(self.reference, other.reference), self.missing | other.missing
        )


class FrechetEvaluator:
    """`fd_<network>` of the decoded images against a reference.

    reference: a FixedReference, or a callable that returns one uint8 RGB image per row (scenes: the ground-truth render
    of the row's prompt); then reference_identity must say what it draws, version and size included.
    """

    name = "frechet"
    version = "1"

    def __init__(
        self,
        network: FeatureNetwork,
        *,
        reference: FixedReference | PairedReference,
        reference_identity: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(reference, FixedReference):
            if dict(reference.network) != network.identity():
                raise DataError("the reference features come from another network or preprocessing; make them again.")
            reference_identity = reference.identity()
        elif not reference_identity:
            raise ValueError("a reference that is a callable needs a reference_identity")
        self._network = network
        self._reference = reference
        self._reference_identity = dict(reference_identity)
        self._cache: dict[bytes, Features] = {}

    def protocol(self) -> dict[str, Any]:
        """Network, reference and the form of the statistics."""
        return {
            "network": self._network.identity(),
            "reference": self._reference_identity,
            "statistics": "float64 moments, ddof 1, symmetric trace term",
        }

    def prepare(self) -> None:
        """Load the feature network."""
        self._network.prepare()

    def score(self, rows: Sequence[Row]) -> FrechetState:
        """Features of the rows' images, and of their references also where a row failed."""
        images: dict[str, Image] = {}
        missing: set[str] = set()
        for row in rows:
            try:
                images[row["sample_id"]] = row_image(row)
            except MissingImage:
                missing.add(row["sample_id"])
        decoded = dict(zip(images, self._features(list(images.values())), strict=True))
        return FrechetState(decoded, self._paired_features(rows), frozenset(missing))

    def merge(self, a: FrechetState, b: FrechetState) -> FrechetState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: FrechetState) -> list[Metric]:
        """One metric; null below two images on a side, where no covariance exists."""
        width = self._network.num_features
        decoded = _stack(state.decoded, width)
        fixed = self._reference if isinstance(self._reference, FixedReference) else None
        reference = fixed.features if fixed else _stack(state.reference, width)
        n, n_reference = len(decoded), len(reference)
        value, reason = None, f"needs two images or more on each side, has {n} and {n_reference}"
        if min(n, n_reference) >= 2:
            from evaluators.features import frechet_through_torchmetrics

            value, reason = frechet_through_torchmetrics(decoded, reference), ""
        protocol = {**self.protocol(), "n_reference": n_reference, "paired": fixed is None}
        if min(n, n_reference) <= width:
            protocol["note"] = f"n is not above the {width} features: singular covariance; compare at equal n only"
        return [
            Metric(
                name=f"fd_{self._network.name}",
                value=value,
                direction="lower",
                unit="squared feature distance",
                n=n,
                n_missing=len(state.missing),
                version=self.version,
                protocol=protocol,
                reason=reason,
            )
        ]

    def _paired_features(self, rows: Sequence[Row]) -> dict[str, Features]:
        if isinstance(self._reference, FixedReference):
            return {}
        images = list(self._reference(rows))
        if len(images) != len(rows):
            raise ValueError(f"the reference gave {len(images)} images for {len(rows)} rows")
        keys = [hashlib.sha256(str(image.shape).encode() + image.tobytes()).digest() for image in images]
        # Cells of a sweep share their prompts, so a worker meets the same references once per cell.
        new = {key: image for key, image in zip(keys, images, strict=True) if key not in self._cache}
        self._cache.update(zip(new, self._features(list(new.values())), strict=True))
        return {row["sample_id"]: self._cache[key] for row, key in zip(rows, keys, strict=True)}

    def _features(self, images: Sequence[Image]) -> Features:
        if not images:
            return np.zeros((0, self._network.num_features), np.float32)
        found = self._network.features(images)
        if found.shape != (len(images), self._network.num_features) or not np.isfinite(found).all():
            raise ValueError(f"{self._network.name} returned broken features of shape {found.shape}")
        return found


def frechet_distance(mean_a: Matrix, cov_a: Matrix, mean_b: Matrix, cov_b: Matrix) -> float:
    """|m_a - m_b|^2 + tr A + tr B - 2 tr (A B)^(1/2) in float64 (evaluators.md 4.1, 4.5).

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


def _join(a: Mapping[str, Features], b: Mapping[str, Features]) -> dict[str, Features]:
    for key in a.keys() & b.keys():
        if not np.array_equal(a[key], b[key]):
            raise ValueError(f"sample {key!r} was scored twice with different results")
    return {**a, **b}


def _stack(features: Mapping[str, Features], width: int) -> Features:
    """[n, width] in sample order, so that sums do not depend on how the work was cut."""
    return np.stack([features[key] for key in sorted(features)]) if features else np.zeros((0, width), np.float32)
