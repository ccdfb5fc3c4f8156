"""What the configurations of all methods share: the target's sampler, checks of values, and knobs that do nothing.

No torch here: plans are built, hashed and checked without loading a model. The decoders that act on
these values live in `mulosd.decoding`. A sampler knob left at None means "the preset of the target's card".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from mulosd.errors import ConfigError, unknown_name

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
        _check_guidance(self)
        check_min(self, "temperature", 0.0)
        check_min(self, "top_k", 0)
        check_top_p(self, "top_p")
        check_min(self, "cfg_interval", -1)
        if self.logits_dtype is not None:
            check_choice(self, "logits_dtype", LOGITS_DTYPES)
        for field in fields(self):
            if get_origin(field.type) is Literal:
                check_choice(self, field.name, get_args(field.type))


SAMPLER_KNOBS = tuple(field.name for field in fields(SamplerKnobs))


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


def type_name(annotation: Any) -> str:
    """`float`, `int | None`: how an annotation reads in an error."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def coerce(method: str, key: str, value: Any, annotation: str) -> Any:
    """`value` as the type that `annotation` reads; whole numbers stand for floats. ConfigError for another type."""
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


def _check_guidance(knobs: SamplerKnobs) -> None:
    """A scale below 1 would run the condition without guidance, as 1 does: several cells of one image."""
    for f in fields(knobs):
        value = getattr(knobs, f.name)
        if f.name.endswith("guidance") and value is not None and value < 1:
            raise ConfigError(f"{knobs.name}.{f.name} = {value:g} is too small; give 1 (no guidance) or more.")


def check_min(knobs: SamplerKnobs, key: str, low: float) -> None:
    """ConfigError where the knob is set and below `low`."""
    value = getattr(knobs, key)
    if value is not None and value < low:
        raise ConfigError(f"{knobs.name}.{key} = {value} is too small; the smallest allowed value is {low:g}.")


def check_top_p(knobs: SamplerKnobs, key: str) -> None:
    """ConfigError where the knob is set and outside (0, 1]."""
    value = getattr(knobs, key)
    if value is not None and not 0.0 < value <= 1.0:
        raise ConfigError(
            f"{knobs.name}.{key} = {value} is out of range; allowed are numbers above 0 up to 1 (1 switches it off)."
        )


def check_choice(knobs: SamplerKnobs, key: str, allowed: tuple[str, ...]) -> None:
    """ConfigError, with the nearest, where the knob is not one of `allowed`."""
    value = getattr(knobs, key)
    if value not in allowed:
        raise unknown_name(f"{knobs.name}.{key}", str(value), allowed)
