"""Features of decoded and of reference images: what the Fréchet distance, KID and precision/recall are derived from.

The state is the features themselves (float32, by sample id): they merge exactly in any order, a retried sample cannot
count twice, and they are computed once per chunk for all metrics (`source`). Metrics are named for
the network, never plain "FID" or "KID". This module knows no metric.
"""

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from evaluators.images import MissingImage, row_image
from evaluators.types import Metric, Row
from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes
from mulosd.files.reading import parse_json, read_file
from mulosd.types import Image

log = logging.getLogger(__name__)

Features = npt.NDArray[np.float32]
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
        """Read what `save` wrote. Raises DataError when the file is missing or not such an archive."""
        try:
            with np.load(io.BytesIO(read_file(path)), allow_pickle=False) as archive:
                features, network = archive["features"], parse_json(str(archive["network"]))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: not an archive of reference features ({error}); write it again.") from error
        if features.ndim != 2 or features.dtype != np.float32 or not np.isfinite(features).all():
            raise DataError(f"{path}: features are not finite float32 [n, features]; write the archive again.")
        return cls(features, network)

    def save(self, path: Path) -> None:
        """Write an .npz in one step."""
        buffer = io.BytesIO()
        np.savez(buffer, features=self.features, network=np.array(json.dumps(dict(self.network), sort_keys=True)))
        publish_bytes(path, buffer.getvalue())

    def identity(self) -> dict[str, Any]:
        """Number and sha256 of the features."""
        digest = hashlib.sha256(np.ascontiguousarray(self.features).tobytes()).hexdigest()
        return {"kind": "fixed", "n": len(self.features), "sha256": digest}


@dataclass(frozen=True)
class FeatureState:
    """Features by sample id, decoded and reference, and the ids without an image. The empty state is the identity."""

    suffix: ClassVar[str] = ".safetensors"

    decoded: Mapping[str, Features] = field(default_factory=dict)
    reference: Mapping[str, Features] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    def to_bytes(self) -> bytes:
        """Two matrices, and the ids of their rows and the missing ones as JSON in a third tensor."""
        sides = {"decoded": self.decoded, "reference": self.reference}
        ids = {**{name: list(side) for name, side in sides.items()}, "missing": sorted(self.missing)}
        tensors: dict[str, npt.NDArray[Any]] = {"ids": np.frombuffer(json.dumps(ids).encode("utf-8"), np.uint8)}
        tensors |= {name: np.stack(list(side.values())) for name, side in sides.items() if side}
        return save(tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote; ValueError for anything else."""
        try:
            tensors = load(data)
            ids = parse_json(tensors.pop("ids").tobytes())
            sides = [
                dict(zip(ids[name], tensors.get(name, np.zeros((0, 0), np.float32)), strict=True))
                for name in ("decoded", "reference")
            ]
            state = cls(sides[0], sides[1], frozenset(ids["missing"]))
        except (SafetensorError, LookupError, TypeError) as error:
            raise ValueError(f"no features by sample id ({error})") from error
        if any(side.dtype != np.float32 or side.ndim != 2 for side in tensors.values()):
            raise ValueError("features are not float32 [n, features]")
        return state

    def merge(self, other: "FeatureState") -> "FeatureState":
        """Both states' features. Raises ValueError when they disagree about a sample."""
        if self.missing & other.decoded.keys() or other.missing & self.decoded.keys():
            raise ValueError("a sample is missing in one state and scored in the other")
        return FeatureState(
            _join(self.decoded, other.decoded), _join(self.reference, other.reference), self.missing | other.missing
        )


class FeatureSets(NamedTuple):
    """The merged features in sample order: decoded [n, D] and reference [m, D] with the sample ids of their rows.

    A fixed reference has ids of its own (`reference/<row>/0`), so that no row shares a prompt with a decoded image.
    """

    decoded: Features
    decoded_ids: list[str]
    reference: Features
    reference_ids: list[str]
    num_missing: int


class FeatureEvaluator:
    """Scores rows into features; gives no metric itself. Evaluators of metrics extend it and set `source`.

    reference: a FixedReference, or a callable that returns one uint8 RGB image per row (scenes: the ground-truth render
    of the row's prompt); then reference_identity must say what it draws, version and size included.
    """

    name = "features"
    state = FeatureState
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
        """Network and reference."""
        return {"network": self._network.identity(), "reference": self._reference_identity}

    def prepare(self) -> None:
        """Load the feature network."""
        self._network.prepare()

    def score(self, rows: Sequence[Row]) -> FeatureState:
        """Features of the rows' images, and of their references also where a row failed.

        An image is missing where its features, or those of its reference, are not finite.
        """
        images: dict[str, Image] = {}
        missing: set[str] = set()
        for row in rows:
            try:
                images[row["sample_id"]] = row_image(row)
            except MissingImage:
                missing.add(row["sample_id"])
        decoded = dict(zip(images, self._features(list(images.values())), strict=True))
        reference = self._paired_features(rows)
        broken = {key for side in (decoded, reference) for key, features in side.items() if not _is_finite(features)}
        if broken:
            log.warning(
                "%s: %d of %d images have features that are not finite; they have no score",
                self._network.name, len(broken), len(rows),
            )  # fmt: skip
        return FeatureState(_without(decoded, broken), _without(reference, broken), frozenset(missing | broken))

    def merge(self, a: FeatureState, b: FeatureState) -> FeatureState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: FeatureState) -> list[Metric]:
        """No metric: those who share the state derive theirs from it."""
        return []

    @property
    def is_paired(self) -> bool:
        """Whether each row brings its own reference."""
        return not isinstance(self._reference, FixedReference)

    def sets(self, state: FeatureState) -> FeatureSets:
        """Both sides in sample order, so that sums do not depend on how the work was cut."""
        width = self._network.num_features
        ids, reference_ids = sorted(state.decoded), sorted(state.reference)
        reference = _stack(state.reference, reference_ids, width)
        if isinstance(self._reference, FixedReference):
            reference = self._reference.features
            reference_ids = [f"reference/{i:06d}/0" for i in range(len(reference))]
        return FeatureSets(_stack(state.decoded, ids, width), ids, reference, reference_ids, len(state.missing))

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
        if found.shape != (len(images), self._network.num_features):
            raise ValueError(f"{self._network.name} returned broken features of shape {found.shape}")
        return found


def _is_finite(features: Features) -> bool:
    return bool(np.isfinite(features).all())


def _without(features: Mapping[str, Features], ids: Set[str]) -> dict[str, Features]:
    return {key: value for key, value in features.items() if key not in ids}


def _join(a: Mapping[str, Features], b: Mapping[str, Features]) -> dict[str, Features]:
    for key in sorted(a.keys() & b.keys()):
        if not np.array_equal(a[key], b[key]):
            raise ValueError(f"sample {key!r} was scored twice with different results")
    return {**a, **b}


def _stack(features: Mapping[str, Features], ids: Sequence[str], width: int) -> Features:
    return np.stack([features[key] for key in ids]) if ids else np.zeros((0, width), np.float32)
