"""Decoding methods as light configuration: one frozen dataclass per method id, validated on construction.

No torch here: plans are built, hashed and checked without loading a model. The decoders that act on
these values live in `mulosd.decoding`. A sampler knob left at None means "the preset of the target's card".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from mulosd.errors import ConfigError, unknown_name

UPSAMPLERS = ("repeat", "bicubic")


@dataclass(frozen=True, kw_only=True)
class SamplerKnobs:
    """Sampling of the target model: guidance scale, temperature, top-k (0 = off), top-p (1 = off)."""

    name: ClassVar[str] = ""

    guidance: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _check_finite(self)
        _check_min(self, "guidance", 0.0)
        _check_min(self, "temperature", 0.0)
        _check_min(self, "top_k", 0)
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ConfigError(
                f"{self.name}.top_p = {self.top_p} is out of range; it lies in (0, 1], 1 switches it off."
            )


@dataclass(frozen=True, kw_only=True)
class AR(SamplerKnobs):
    """Plain autoregressive decoding: N forwards for N tokens."""

    name: ClassVar[str] = "ar"


@dataclass(frozen=True, kw_only=True)
class ZipAR(SamplerKnobs):
    """ZipAR: a cell runs once `window` cells of the row above, from its own column on, are done.

    Forwards 2W + (H - 2) * window for window <= W (decoding.md 2.6); window >= W is AR.
    """

    name: ClassVar[str] = "zipar"

    window: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_min(self, "window", 1)


@dataclass(frozen=True, kw_only=True)
class DraftOnly(SamplerKnobs):
    """The up-sampled draft of the low-resolution model, untouched: the control row of every table."""

    name: ClassVar[str] = "draft-only"

    upsampler: str = "bicubic"
    draft_window: int = 4
    draft_guidance: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_choice(self, "upsampler", UPSAMPLERS)
        _check_min(self, "draft_window", 1)
        _check_min(self, "draft_guidance", 0.0)


@dataclass(frozen=True, kw_only=True)
class MuLoSD(DraftOnly):
    """Multi-Scale Local Speculative Decoding (arXiv 2601.05149).

    tau: a drafted token passes if the probability pooled over its pool_k nearest codes (itself
    included) is at least tau; any finite number (> 1 rejects all, <= 0 accepts all).
    radius: Chebyshev radius of the local expansion around rejected cells.
    draft_window: ZipAR window of the drafter (>= draft grid width is serial drafting).
    island_window: ZipAR-like window inside a rejection island.
    rows_per_cycle: draft-grid rows per cycle, or "all" for one cycle over the whole image.
    resample: "islands" (concurrent, K/V stale during the round) or "serial" (raster order, K/V carried).
    """

    name: ClassVar[str] = "mulosd"

    tau: float = 0.1
    pool_k: int = 4
    radius: int = 1
    island_window: int = 4
    rows_per_cycle: int | Literal["all"] = "all"
    resample: Literal["islands", "serial"] = "islands"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_min(self, "pool_k", 1)
        _check_min(self, "radius", 0)
        _check_min(self, "island_window", 1)
        _check_choice(self, "resample", ("islands", "serial"))
        if self.rows_per_cycle != "all":
            _check_min(self, "rows_per_cycle", 1)


METHODS: dict[str, type[SamplerKnobs]] = {cls.name: cls for cls in (AR, DraftOnly, ZipAR, MuLoSD)}


def build_method(name: str, knobs: Mapping[str, Any] | None = None, *, where: str = "") -> SamplerKnobs:
    """The validated configuration of method `name`; unknown names and knobs raise ConfigError with the nearest."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, where)
    cls = METHODS[name]
    known = {f.name: f for f in fields(cls)}
    for key in knobs or {}:
        if key not in known:
            raise unknown_name(f"{name} knob", key, known, where)
    checked = {key: _coerce(name, key, value, _type_name(known[key].type)) for key, value in (knobs or {}).items()}
    return cls(**checked)


def knobs_of(method: SamplerKnobs) -> dict[str, Any]:
    """Knobs that differ from their introduction default, for keys and labels (architecture 6)."""
    return {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}


def _type_name(annotation: Any) -> str:
    """`float`, `int | None`: how an annotation reads in an error."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _coerce(method: str, key: str, value: Any, annotation: str) -> Any:
    if isinstance(value, str) and value.lower().lstrip("+-.") in ("nan", "inf", "infinity"):
        value = float(value.lower().replace(".", ""))  # YAML reads a bare nan as text
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if "float" in annotation and (is_int or isinstance(value, float)):
        return float(value)
    if "int" in annotation and is_int:
        return value
    if value is None and "None" in annotation:
        return value
    if isinstance(value, str) and ("str" in annotation or "Literal" in annotation):
        return value
    raise ConfigError(f"{method}.{key} = {value!r} has the wrong type; allowed: {annotation}.")


def _check_finite(knobs: SamplerKnobs) -> None:
    for f in fields(knobs):
        value = getattr(knobs, f.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{knobs.name}.{f.name} = {value} is not finite; give a finite number.")


def _check_min(knobs: SamplerKnobs, key: str, low: float) -> None:
    value = getattr(knobs, key)
    if value is not None and value < low:
        raise ConfigError(f"{knobs.name}.{key} = {value} is too small; the smallest allowed value is {low:g}.")


def _check_choice(knobs: SamplerKnobs, key: str, allowed: tuple[str, ...]) -> None:
    value = getattr(knobs, key)
    if value not in allowed:
        raise unknown_name(f"{knobs.name}.{key}", str(value), allowed)
