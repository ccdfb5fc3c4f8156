"""The rows that tables and figures are made of."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mulosd.files.pin import label_of


@dataclass(frozen=True)
class CellRow:
    """One finished cell of a sweep.

    metrics: name -> the JSON form of `evaluators.types.Metric`. counters: DecodeStats counter ->
    {sample_id: value}. latency: fields of the bench run for this cell (speed_up, interval ...) or {}.
    versions: of the code that made the images, or () where nothing was recorded.
    """

    cell_key: str
    target: str
    method: str
    knobs: dict[str, Any]
    n_target_tokens: int
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    latency: dict[str, Any] = field(default_factory=dict)
    versions: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`mulosd tau=0.2 radius=1`: the method and its non-default knobs."""
        return label_of(self.method, knobs=sorted(self.knobs.items()))

    @property
    def judges_a_draft(self) -> bool:
        """Whether the target verified what a drafter had sampled, as with `mulosd`."""
        return all(any(self.counters.get(f"forwards_{kind}", {}).values()) for kind in ("draft", "verify"))


@dataclass(frozen=True)
class Picture:
    """One decoded image with what the gallery draws beside it."""

    sample_id: str
    prompt: str
    image: np.ndarray  # uint8 [height, width, 3]
    status: np.ndarray  # uint8 [H, W] of mulosd.types STATUS_* values
    forwards: int
