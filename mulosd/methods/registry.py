"""Method id -> configuration, and configurations from names and values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mulosd.errors import unknown_name
from mulosd.methods.ar import AR
from mulosd.methods.base import SamplerKnobs, check_given, coerce, type_name
from mulosd.methods.draft_only import DraftOnly
from mulosd.methods.mulosd import MuLoSD
from mulosd.methods.zipar import ZipAR

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
    return cls(**{key: coerce(name, key, value, type_name(known[key].type)) for key, value in knobs.items()})
