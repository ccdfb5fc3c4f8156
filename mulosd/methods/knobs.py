"""A knob of a method: a field of its configuration with its meaning, and the checks of its value that need no other."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mulosd.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Doc:
    """What `Annotated[type, Doc(...)]` says of a knob.

    low: the smallest value, and low_means what it stands for. choices: gives the values of a text knob whose type does
    not list them. is_file: the value is the path of a file, whose content stands for it in the key of a cell.
    """

    text: str
    low: float | None = None
    low_means: str = ""
    choices: Callable[[], Collection[str]] | None = None
    is_file: bool = False


@dataclass(frozen=True)
class Knob:
    """A field of a configuration: its type without `Annotated`, its default (MISSING: none) and its meaning."""

    name: str
    type: Any
    default: Any
    doc: Doc

    @property
    def type_name(self) -> str:
        """`float`, `int | 'all'`: how the type reads in texts."""
        return _type_name(self.type)

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The values of a knob that takes texts only; None for any other."""
        if self.doc.choices:
            return tuple(self.doc.choices())
        parts = [part for part in _parts(self.type) if part is not NoneType]
        if not parts or any(get_origin(part) is not Literal for part in parts):
            return None
        return tuple(value for part in parts for value in get_args(part))

    def coerce(self, method: str, value: Any) -> Any:
        """`value` as this type; whole numbers stand for floats. ConfigError for another type."""
        allowed = {str if get_origin(part) is Literal else part for part in _parts(self.type)}
        if isinstance(value, str) and value.lower().lstrip("+-.") in ("nan", "inf", "infinity") and float in allowed:
            value = float(value.lower().replace(".", ""))  # YAML reads a bare nan as text
        if type(value) is int and float in allowed:
            try:
                return float(value)
            except OverflowError:
                raise ConfigError(f"{method}.{self.name} = {value!r} is too large for a number.") from None
        if (NoneType if value is None else type(value)) in allowed:
            return value
        raise ConfigError(f"{method}.{self.name} = {value!r} has the wrong type; allowed: {self.type_name}.")

    def check(self, method: str, value: Any) -> None:
        """ConfigError for a value that is not finite, below `low` or none of the choices."""
        if value is None:
            return
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{method}.{self.name} = {value} is not finite; give a finite number.")
        # A registry knows its built-in names without a look at what is installed.
        allowed = self.doc.choices() if self.doc.choices else self.choices
        if allowed is not None and value not in allowed:
            raise unknown_name(f"{method}.{self.name}", str(value), allowed)
        if self.doc.low is not None and not isinstance(value, str) and value < self.doc.low:
            low = f"{self.doc.low:g}" + (f" ({self.doc.low_means})" if self.doc.low_means else "")
            raise ConfigError(f"{method}.{self.name} = {value} is too small; the smallest allowed value is {low}.")


def declared_knobs(cls: type) -> Mapping[str, Knob]:
    """Name -> knob of a configuration class, in the order of its fields."""
    if cls not in _DECLARED:
        _DECLARED[cls] = _read(cls)
    return _DECLARED[cls]


def has_default(knob: Knob) -> bool:
    """Whether a configuration can leave the knob out."""
    return knob.default is not MISSING


_DECLARED: dict[type, Mapping[str, Knob]] = {}


def _read(cls: Any) -> Mapping[str, Knob]:
    hints = get_type_hints(cls, include_extras=True)
    knobs = {}
    for field in fields(cls):
        hint, doc = hints[field.name], Doc("")
        if get_origin(hint) is Annotated:
            doc = next((mark for mark in hint.__metadata__ if isinstance(mark, Doc)), doc)
            hint = hint.__origin__
        knobs[field.name] = Knob(field.name, hint, field.default, doc)
    return knobs


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _type_name(hint: Any) -> str:
    names = []
    for part in _parts(hint):
        if get_origin(part) is Literal:
            names += [repr(value) for value in get_args(part)]
        else:
            names.append("None" if part is NoneType else part.__name__ if isinstance(part, type) else str(part))
    return " | ".join(names)
