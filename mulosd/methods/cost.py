"""What a method will do on a target, from the card alone: refusals, resolved samplers, forwards. No torch.

Forwards of MuLo-SD depend on what the target rejects, so they are ranges: closed forms where nothing is rejected
(`low`), and bounds that hold whatever is rejected (`high`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mulosd.errors import ConfigError
from mulosd.families.card import Card
from mulosd.families.latent_card import PREFIX, find_latent
from mulosd.methods.ar import AR
from mulosd.methods.base import SamplerKnobs
from mulosd.methods.draft_only import DraftOnly
from mulosd.methods.mulosd import MuLoSD
from mulosd.methods.zipar import ZipAR
from mulosd.sampling.greedy import is_greedy

SAMPLER_KEYS = ("guidance", "temperature", "top_k", "top_p")


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
    """Forwards of one image by kind, and cycles."""

    draft: Range = Range(0, 0)
    verify: Range = Range(0, 0)
    resample: Range = Range(0, 0)
    refresh: Range = Range(0, 0)
    cycles: Range = Range(0, 0)

    @property
    def total(self) -> Range:
        """Forwards of all kinds."""
        return self.draft + self.verify + self.resample + self.refresh


def check_fit(method: SamplerKnobs, card: Card) -> None:
    """ConfigError where a target cannot run a method: no drafter, a knob beyond its codes or grids or that changes
    nothing on it, or a learned up-sampler that its family does not have."""
    if isinstance(method, DraftOnly) and card.draft_grid is None:
        raise ConfigError(f"{card.target_id} has no drafter, so method {method.name!r} cannot run; use ar or zipar.")
    if isinstance(method, DraftOnly) and method.drafter not in card.drafters:
        lacking = {
            "self": f"the model of {card.target_id} was not trained on its draft grid too (multi_grid in its card)",
            "checkpoint": f"{card.target_id} has no other checkpoint to draft with",
        }
        raise ConfigError(
            f"{method.name}.drafter = {method.drafter!r} cannot run, as {lacking[method.drafter]}; "
            f"use drafter {card.drafters[0]!r}."
        )
    if isinstance(method, MuLoSD):
        _check_mulosd(method, card)
    if isinstance(method, DraftOnly) and method.upsampler.startswith(PREFIX):
        find_latent(card, method.upsampler)


def _check_mulosd(method: MuLoSD, card: Card) -> None:
    if method.pool_k > card.codebook_size:
        raise ConfigError(
            f"mulosd.pool_k = {method.pool_k} exceeds the {card.codebook_size} codes of {card.target_id}; "
            f"choose from 1 to {card.codebook_size}."
        )
    if method.radius > card.grid:
        raise ConfigError(
            f"mulosd.radius = {method.radius} exceeds the {card.grid} x {card.grid} grid of {card.target_id}; "
            f"choose from 0 to {card.grid}."
        )
    if card.draft_grid and method.rows_per_cycle != "all" and method.rows_per_cycle >= card.draft_grid:
        raise ConfigError(
            f"mulosd.rows_per_cycle = {method.rows_per_cycle} covers all {card.draft_grid} draft rows of "
            f"{card.target_id}; choose from 1 to {card.draft_grid - 1}, or all."
        )
    if method.pooling == "unfiltered" and not _filters(target_sampler(method, card.sampler)):
        raise ConfigError(
            f"mulosd.pooling = 'unfiltered' does nothing on {card.target_id}, which samples without top_k and top_p; "
            "leave it out, or set one of them."
        )


def _filters(sampler: Mapping[str, float]) -> bool:
    """Whether settings drop any code."""
    return sampler["top_k"] > 0 or sampler["top_p"] < 1


def target_sampler(method: SamplerKnobs, preset: Mapping[str, float]) -> dict[str, Any]:
    """Sampling settings of the target model: the knobs, else the card's preset."""
    knobs = {key: getattr(method, key) for key in SAMPLER_KEYS}
    chosen = {key: preset[key] if value is None else value for key, value in knobs.items()}
    return {**chosen, "top_k": int(chosen["top_k"])}


def draft_sampler(method: DraftOnly, preset: Mapping[str, float]) -> dict[str, Any]:
    """Sampling settings of the drafter: its knobs, else the card's guidance for it and the target's other settings."""
    fallback = {**target_sampler(method, preset), "guidance": preset["draft_guidance"]}
    knobs = {key: getattr(method, f"draft_{key}") for key in SAMPLER_KEYS}
    return {key: fallback[key] if value is None else value for key, value in knobs.items()}


def draws_greedily(method: SamplerKnobs, preset: Mapping[str, float]) -> bool:
    """Whether any draw of the method is greedy: by the target (`draft-only`: none) or the drafter."""
    samplers = [] if method.name == DraftOnly.name else [target_sampler(method, preset)]
    samplers += [draft_sampler(method, preset)] if isinstance(method, DraftOnly) else []
    return any(is_greedy(sampler["temperature"], sampler["top_k"]) for sampler in samplers)


def forecast(method: SamplerKnobs, grids: Grids) -> Forecast | None:
    """Forwards per image; None for a method without a cost formula. ConfigError for a draft without a drafter."""
    num_tokens = grids.height * grids.width
    if isinstance(method, AR):
        return Forecast(resample=Range(num_tokens, num_tokens))
    if isinstance(method, ZipAR):
        known = num_fronts(grids.height, grids.width, method.window, at_top=True)
        return Forecast(resample=Range(known, known))
    if not isinstance(method, DraftOnly):
        return None
    if not grids.draft_height:
        raise ConfigError(f"{method.name} needs a drafter, which this target does not have; choose ar or zipar.")
    if not isinstance(method, MuLoSD):
        known = num_fronts(grids.draft_height, grids.draft_width, method.draft_window, at_top=True)
        return Forecast(draft=Range(known, known))
    return _redrafting(method, grids) if method.redrafts else _mulosd(method, grids)


def num_fronts(rows: int, width: int, window: int, *, at_top: bool) -> int:
    """Forwards of a staggered front over whole rows, the first serial `at_top` (docs/mulosd.md "Forward passes")."""
    stagger = min(window, width)
    serial = width - stagger if at_top and rows > 1 else 0
    return width + serial + (rows - 1) * stagger


def one_island_fronts(method: MuLoSD, grids: Grids) -> int:
    """Resample forwards where every drafted cell is rejected and each block is one island."""
    fronts = (
        num_fronts((stop - start) * grids.ratio, grids.width, method.island_window, at_top=False)
        for start, stop in _cycles(method, grids)
    )
    return sum(fronts) - 1  # cell 0 is drawn from the prefix's own logits


def _cycles(method: MuLoSD, grids: Grids) -> Iterator[tuple[int, int]]:
    """Draft rows [start, stop) of each cycle where nothing is drafted twice."""
    rows = grids.draft_height if method.rows_per_cycle == "all" else method.rows_per_cycle
    for start in range(0, grids.draft_height, rows):
        yield start, min(start + rows, grids.draft_height)


def _draft_forwards(method: MuLoSD, grids: Grids, start: int, stop: int) -> int:
    return num_fronts(stop - start, grids.draft_width, method.draft_window, at_top=start == 0)


def _mulosd(method: MuLoSD, grids: Grids) -> Forecast:
    """Every draft row once. A resampled cell costs a forward at most; serially the first of a cycle costs none."""
    blocks = list(_cycles(method, grids))
    cycles, feedbacks = len(blocks), (len(blocks) - 1) * (method.feedback == "downsample")
    draft = sum(_draft_forwards(method, grids, start, stop) for start, stop in blocks) + feedbacks
    fraction = 1.0 if method.resampled_fraction is None else method.resampled_fraction
    cells = [math.floor(fraction * (stop - start) * grids.ratio * grids.width) for start, stop in blocks]
    free = 1 if method.resample == "serial" else 0
    refreshes = cycles - 1 if method.kv_policy == "refresh" else 0
    return Forecast(
        Range(draft, draft),
        Range(cycles, cycles),
        Range(0, sum(max(0, size - free) for size in cells)),
        Range(0, refreshes),
        Range(cycles, cycles),
    )


def _redrafting(method: MuLoSD, grids: Grids) -> Forecast:
    """From no rejection to one at the first cell of every cycle, which then settles that cell alone.

    A cycle costs what drafting from the row of its first cell costs; cell 0 drafted again takes no forward of its own.
    """
    blocks, rows = list(_cycles(method, grids)), range(grids.draft_height)
    num_tokens = grids.height * grids.width
    cells = num_tokens // grids.draft_height  # target cells that a draft row covers
    low = sum(_draft_forwards(method, grids, start, stop) for start, stop in blocks)
    size = blocks[0][1]
    high = cells * sum(_draft_forwards(method, grids, row, min(row + size, len(rows))) for row in rows)
    cycles, draft = Range(len(blocks), num_tokens), Range(low, high - (cells - 1))
    if method.feedback == "downsample":
        draft += Range(len(blocks) - 1, len(rows) - 1)
    return Forecast(draft=draft, verify=cycles, cycles=cycles)
