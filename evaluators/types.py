"""The one signature of all evaluators, and the metric they return.

An evaluator reads staged rows only. `score` turns one chunk into a state, `merge` joins states
(associative, commutative), `finalize` turns the joined state into metrics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from mulosd.types import Direction

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One number with everything needed to trust it.

    value None means "cannot be judged", then `reason` says why. interval: 95 % limits or None.
    n: scored items; n_missing: items that have no score (failed or unreadable).
    per_sample: sample_id -> value where the metric is a mean over samples, for paired comparisons; `<sample_id>#<id>`
    where it is one over questions. missing: sample_id -> why it has no value there.
    """

    name: str
    value: float | None
    direction: Direction
    unit: str
    n: int
    n_missing: int
    version: str
    interval: tuple[float, float] | None = None
    protocol: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    per_sample: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def finite(self) -> "Metric":
        """The metric without numbers that are not finite: samples become missing, the value and its limits null."""
        kept = {key: value for key, value in self.per_sample.items() if math.isfinite(value)}
        lost = len(self.per_sample) - len(kept)
        numbers = [] if self.value is None else [self.value, *(self.interval or ())]
        if not lost and all(map(math.isfinite, numbers)):
            return self
        reason = f"{lost} scores are not finite" if lost else "the value or its interval is not finite"
        n, n_missing = self.n - lost, self.n_missing + lost
        missing = {**self.missing, **dict.fromkeys(self.per_sample.keys() - kept.keys(), "the score is not finite")}
        nulled = replace(self, value=None, interval=None, reason=reason, n=n, n_missing=n_missing)
        return replace(nulled, per_sample=kept, missing=missing)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return asdict(self)


class State(Protocol):
    """What `Evaluator.score` returns. Its file is data only (JSON, safetensors), so that reading one runs nothing."""

    suffix: ClassVar[str]  # of its file

    def to_bytes(self) -> bytes:
        """The content of the file."""
        ...

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The equal state; ValueError where `data` holds none."""
        ...


class Evaluator(Protocol):
    """prepare once, score chunks, merge states, finalize."""

    name: str
    version: str

    @property
    def state(self) -> type[State]:
        """The type of its states."""
        ...

    def protocol(self) -> dict[str, Any]:
        """Settings and weight hashes that change the numbers; part of the score folder's key."""
        ...

    def prepare(self) -> None:
        """Load what scoring needs (networks); called once per process."""
        ...

    def score(self, rows: Sequence[Row]) -> Any:
        """State of one chunk."""
        ...

    def merge(self, a: Any, b: Any) -> Any:
        """Join two states."""
        ...

    def finalize(self, state: Any) -> list[Metric]:
        """Metrics of a joined state."""
        ...
