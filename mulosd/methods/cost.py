"""What configurations of methods say about a target from its card only: samplers and forward passes. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mulosd.sampling.greedy import is_greedy

SAMPLER_KEYS = ("guidance", "temperature", "top_k", "top_p")


class Sampling(NamedTuple):
    """Resolved sampling settings of one model: knobs, else the preset of the card."""

    guidance: float
    temperature: float
    top_k: int
    top_p: float

    @property
    def filters(self) -> bool:
        """Whether they drop any code."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def is_greedy(self) -> bool:
        """Whether they leave only the most probable code."""
        return is_greedy(self.temperature, self.top_k)


def resolve_sampling(knobs: Mapping[str, float | None], fallback: Mapping[str, float]) -> Sampling:
    """Settings by SAMPLER_KEYS: the knob, where it is set."""
    chosen = {key: fallback[key] if knobs[key] is None else knobs[key] for key in SAMPLER_KEYS}
    guidance, temperature, top_k, top_p = (float(value) for value in chosen.values() if value is not None)
    return Sampling(guidance, temperature, int(top_k), top_p)


class Grids(NamedTuple):
    """Target grid H x W and draft grid h x w; a target without a drafter has draft grid 0 x 0."""

    height: int
    width: int
    draft_height: int = 0
    draft_width: int = 0

    @property
    def ratio(self) -> int:
        """Target rows per draft row."""
        return self.height // self.draft_height

    @property
    def num_tokens(self) -> int:
        """Tokens N of one image."""
        return self.height * self.width


@dataclass(frozen=True)
class Range:
    """low to high; equal where the number is known."""

    low: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Forecast:
    """Forward passes of one image by kind, and cycles.

    Where they depend on what the target rejects they are ranges: what it takes where nothing is rejected (`low`), and a
    bound that holds whatever is rejected (`high`).
    """

    draft: Range = Range(0, 0)
    verify: Range = Range(0, 0)
    resample: Range = Range(0, 0)
    refresh: Range = Range(0, 0)
    cycles: Range = Range(0, 0)

    @property
    def total(self) -> Range:
        """Forward passes of all kinds."""
        return self.draft + self.verify + self.resample + self.refresh


def num_fronts(rows: int, width: int, window: int, *, at_top: bool) -> int:
    """Forwards of a staggered front over whole rows, the first serial `at_top` (docs/mulosd.md "Forward passes")."""
    stagger = min(window, width)
    serial = width - stagger if at_top and rows > 1 else 0
    return width + serial + (rows - 1) * stagger
