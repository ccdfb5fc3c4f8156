"""Decoding methods as light configuration: one frozen dataclass per method id, validated on construction.

No torch here: plans are built, hashed and checked without loading a model. The decoders that act on
these values live in `mulosd.decoding`. A sampler knob left at None means "the preset of the target's card".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from mulosd.errors import ConfigError, unknown_name

UPSAMPLERS = ("repeat", "nearest", "bicubic", "lanczos", "sr", "latent-ce", "latent-pixel", "latent-gan")
LOGITS_DTYPES = ("float32", "model")
FILE_KNOBS = ("sr_model",)  # knobs that name a file; a cell key holds its content in place of its path
NEUTRAL = (None, "none", "auto", -1)  # defaults that ask for nothing, so that they may stand beside anything


class Idle(NamedTuple):
    """A knob that does nothing, beside what, and what to do for it to count."""

    knob: str
    beside: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class SamplerKnobs:
    """Sampling of the target model: guidance scale, temperature, top-k (0 = off), top-p (1 = off).

    cfg_interval: guidance is dropped behind raster cell cfg_interval + 1, in whatever order cells are decided; -1 keeps
    it on (LlamaGen's option). The drafter is guided everywhere. logits_dtype: what logits and guidance
    of target and drafter are computed in, "float32" (or wider) or "model" (that of the weights).
    """

    name: ClassVar[str] = ""

    guidance: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    cfg_interval: int = -1
    logits_dtype: str | None = None

    def __post_init__(self) -> None:
        self._check()
        check_given([(self, knobs_of(self))])

    def idle(self) -> Iterator[Idle]:
        """Knobs that do nothing beside the others, whatever their value."""
        if self.guidance is not None and self.guidance <= 1:
            yield Idle("cfg_interval", f"guidance {self.guidance:g}, which is none", "set one above 1")

    def _check(self) -> None:
        """Refuse values out of range."""
        _check_finite(self)
        _check_min(self, "guidance", 0.0)
        _check_min(self, "temperature", 0.0)
        _check_min(self, "top_k", 0)
        _check_top_p(self, "top_p")
        _check_min(self, "cfg_interval", -1)
        if self.logits_dtype is not None:
            _check_choice(self, "logits_dtype", LOGITS_DTYPES)
        for field in fields(self):
            if get_origin(field.type) is Literal:
                _check_choice(self, field.name, get_args(field.type))


@dataclass(frozen=True, kw_only=True)
class AR(SamplerKnobs):
    """Plain autoregressive decoding: N forwards for N tokens."""

    name: ClassVar[str] = "ar"


@dataclass(frozen=True, kw_only=True)
class ZipAR(SamplerKnobs):
    """ZipAR: a cell runs once `window` cells of the row above, from its own column on, are done.

    Forwards 2W + (H - 2) * window for window <= W (docs/mulosd.md "Forward passes"); window >= W is AR.
    """

    name: ClassVar[str] = "zipar"

    window: int = 4

    def _check(self) -> None:
        super()._check()
        _check_min(self, "window", 1)


@dataclass(frozen=True, kw_only=True)
class DraftOnly(SamplerKnobs):
    """The up-sampled draft of the low-resolution model, untouched: the control row of every table.

    drafter: the family's "checkpoint" of the draft grid, or "self": the target's own weights on that grid, where one
    set of weights was trained on both (self-drafting). upsampler: one of UPSAMPLERS. sr_model: file of a
    super-resolution network for upsampler "sr"; None is the packaged one (`mulosd.upsample.sr`).
    """

    name: ClassVar[str] = "draft-only"

    drafter: Literal["checkpoint", "self"] = "checkpoint"
    upsampler: str = "bicubic"
    sr_model: str | None = None
    draft_window: int = 4
    draft_guidance: float | None = None
    draft_temperature: float | None = None
    draft_top_k: int | None = None
    draft_top_p: float | None = None

    def idle(self) -> Iterator[Idle]:
        yield from super().idle()
        if self.upsampler != "sr":
            yield Idle("sr_model", f"upsampler {self.upsampler!r}", "set upsampler to 'sr'")

    def _check(self) -> None:
        super()._check()
        _check_choice(self, "upsampler", UPSAMPLERS)
        _check_min(self, "draft_window", 1)
        _check_min(self, "draft_guidance", 0.0)
        _check_min(self, "draft_temperature", 0.0)
        _check_min(self, "draft_top_k", 0)
        _check_top_p(self, "draft_top_p")


@dataclass(frozen=True, kw_only=True)
class MuLoSD(DraftOnly):
    """Multi-Scale Local Speculative Decoding (arXiv 2601.05149; docs/mulosd.md).

    tau: a drafted token passes if the probability pooled over its pool_k nearest codes (itself
    included) is at least tau; any finite number (> 1 rejects all, <= 0 accepts all).
    resampled_fraction: in (0, 1) in place of tau: per image and cycle the largest tau that resamples at most this
    fraction of the drafted cells.
    pooling: probabilities after top-k and top-p, or before them.
    rejection: what follows a rejection. "expand": cells within Chebyshev distance `radius` of a rejected one, from the
    first one on, are drawn again; "local": rejected cells alone; "raster-resample": all from the first one on;
    "raster-redraft": the first one is drawn by the target and everything after it is drafted again.
    resample: "islands" (concurrent) or "serial" (raster order). island_window: ZipAR-like window inside an island.
    pending: drafts of cells still to be resampled are "masked" from the others or "visible" until overwritten.
    kv: the target's K/V of accepted cells after resampled ones (docs/mulosd.md "K/V after resampling"). "stale": as
    verified; "refresh": one forward per changed block when cycles follow; "carry": fed again with later forwards, at no
    extra forward (serial only). "auto": carry when serial, else refresh.
    draft_window: ZipAR window of the drafter (>= draft grid width is serial drafting).
    rows_per_cycle: draft-grid rows per cycle, or "all" for one cycle over the whole image.
    feedback: the drafter goes on from its own tokens ("none") or from the finished image scaled down ("downsample").
    """

    name: ClassVar[str] = "mulosd"

    tau: float = 0.1
    pool_k: int = 4
    radius: int = 1
    island_window: int = 4
    rows_per_cycle: int | Literal["all"] = "all"
    resample: Literal["islands", "serial"] = "islands"
    rejection: Literal["expand", "local", "raster-resample", "raster-redraft"] = "expand"
    pending: Literal["masked", "visible"] = "masked"
    kv: Literal["auto", "stale", "refresh", "carry"] = "auto"
    pooling: Literal["filtered", "unfiltered"] = "filtered"
    feedback: Literal["none", "downsample"] = "none"
    resampled_fraction: float | None = None

    def _check(self) -> None:
        super()._check()
        _check_min(self, "pool_k", 1)
        _check_min(self, "radius", 0)
        _check_min(self, "island_window", 1)
        if isinstance(self.rows_per_cycle, str) and self.rows_per_cycle != "all":
            raise ConfigError(
                f"mulosd.rows_per_cycle = {self.rows_per_cycle!r} is not allowed; give a number of draft rows or 'all'."
            )
        if self.rows_per_cycle != "all":
            _check_min(self, "rows_per_cycle", 1)
        if self.resampled_fraction is not None and not 0.0 < self.resampled_fraction < 1.0:
            raise ConfigError(
                f"mulosd.resampled_fraction = {self.resampled_fraction} is out of range; it lies between 0 and 1, "
                "both excluded (tau <= 0 resamples nothing, tau > 1 everything)."
            )

    @property
    def redrafts(self) -> bool:
        """What follows a rejection is drafted again, so that nothing but the rejected cell is resampled."""
        return self.rejection == "raster-redraft"

    @property
    def kv_policy(self) -> Literal["stale", "refresh", "carry"]:
        """`kv` with "auto" resolved."""
        if self.kv != "auto":
            return self.kv
        return "carry" if self.resample == "serial" or self.redrafts else "refresh"

    def idle(self) -> Iterator[Idle]:
        yield from super().idle()
        if self.rejection != "expand":
            yield Idle("radius", f"rejection {self.rejection!r}", "use rejection 'expand'")
        if self.redrafts:
            for knob in ("resample", "island_window", "pending", "kv", "resampled_fraction"):
                yield Idle(knob, "rejection 'raster-redraft'", "use another rejection")
        if self.resample == "serial":
            yield Idle("pending", "resample 'serial', where no query reaches a pending cell", "use 'islands'")
            yield Idle("island_window", "resample 'serial', where one cell runs after the other", "use 'islands'")
        elif self.kv == "carry":
            yield Idle("kv", "resample 'islands'", "use resample 'serial'")
        if self.rows_per_cycle == "all":
            if self.kv == "refresh" or (self.resample == "islands" and not self.redrafts):
                yield Idle("kv", "rows_per_cycle 'all', where no cycle follows", "use fewer rows")
            if not self.redrafts:
                yield Idle("feedback", "rows_per_cycle 'all', where no cycle follows", "use fewer rows")
        if self.resampled_fraction is not None:
            yield Idle("tau", "resampled_fraction, which chooses it", "leave resampled_fraction out")


SAMPLER_KNOBS = tuple(field.name for field in fields(SamplerKnobs))
DRAFT_KNOBS = tuple(field.name for field in fields(DraftOnly) if field.name not in SAMPLER_KNOBS)

METHODS: dict[str, type[SamplerKnobs]] = {cls.name: cls for cls in (AR, DraftOnly, ZipAR, MuLoSD)}


def build_method(name: str, knobs: Mapping[str, Any] | None = None, *, where: str = "") -> SamplerKnobs:
    """The validated configuration of method `name`; unknown names and knobs raise ConfigError with the nearest.

    A knob that was given and does nothing is refused, at its default too.
    """
    method = configure(name, knobs or {}, where=where)
    check_given([(method, knobs or {})])
    return method


def configure(name: str, knobs: Mapping[str, Any], *, where: str = "") -> SamplerKnobs:
    """`build_method` for one of several configurations that stand together: see `check_given`."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, where)
    cls = METHODS[name]
    known = {f.name: f for f in fields(cls)}
    for key in knobs:
        if key not in known:
            raise unknown_name(f"{name} knob", key, known, where)
    return cls(**{key: _coerce(name, key, value, _type_name(known[key].type)) for key, value in knobs.items()})


def check_given(configurations: Sequence[tuple[SamplerKnobs, Mapping[str, Any]]]) -> None:
    """Refuse a knob that does nothing in any of the configurations that it was given to, which stand together.

    configurations: each with the knobs that it was given, of which one at its default looks as if it was not.
    """
    for knob in dict.fromkeys(key for _, given in configurations for key in given):
        found = [
            (method, next((idle for idle in method.idle() if idle.knob == knob), None))
            for method, given in configurations
            if knob in given and not _is_neutral(method, knob)
        ]
        if found and all(idle for _, idle in found):
            method, idle = found[0]
            assert idle is not None
            raise ConfigError(
                f"{method.name}.{knob} = {getattr(method, knob)!r} does nothing with {idle.beside}; leave it out, or "
                f"{idle.instead}."
            )


def knobs_of(method: SamplerKnobs) -> dict[str, Any]:
    """Knobs that differ from their introduction default, for keys and labels (docs/architecture.md "Identity")."""
    return {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}


def _is_neutral(method: SamplerKnobs, knob: str) -> bool:
    value = getattr(method, knob)
    return value in NEUTRAL and value == type(method).__dataclass_fields__[knob].default


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


def _check_top_p(knobs: SamplerKnobs, key: str) -> None:
    value = getattr(knobs, key)
    if value is not None and not 0.0 < value <= 1.0:
        raise ConfigError(f"{knobs.name}.{key} = {value} is out of range; it lies in (0, 1], 1 switches it off.")


def _check_choice(knobs: SamplerKnobs, key: str, allowed: tuple[str, ...]) -> None:
    value = getattr(knobs, key)
    if value not in allowed:
        raise unknown_name(f"{knobs.name}.{key}", str(value), allowed)
