"""Method id -> configuration, also of other packages (entry points `mulosd.methods`); configurations from values."""

import re
from collections.abc import Mapping
from typing import Any

from mulosd.errors import unknown_name
from mulosd.methods.base import SamplerKnobs, check_given
from mulosd.methods.knobs import declared_knobs, has_default
from mulosd.registry import Registry

_DECODER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _problem(name: str, found: Any) -> str | None:
    """What keeps the object of another package from being a method."""
    if not (isinstance(found, type) and issubclass(found, SamplerKnobs)):
        return "it is not a subclass of mulosd.methods.SamplerKnobs"
    if "__dataclass_params__" not in vars(found) or not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "it is not a dataclass(frozen=True, kw_only=True)"
    if found.name != name:
        return f"its name is {found.name!r} and not that of its entry"
    if not _DECODER.fullmatch(found.decoder):
        return f"its decoder {found.decoder!r} does not have the form 'module:function'"
    if lacking := [knob.name for knob in declared_knobs(found).values() if not has_default(knob)]:
        return f"its knob {lacking[0]!r} has no default"
    if undocumented := [knob.name for knob in declared_knobs(found).values() if not knob.doc.text]:
        return f"its knob {undocumented[0]!r} has no meaning; annotate it with mulosd.methods.Doc"
    found()  # the defaults must be allowed
    return None


METHODS: Registry[type[SamplerKnobs]] = Registry(
    "method",
    "mulosd.methods",
    {
        "ar": "mulosd.methods.ar:AR",
        "draft-only": "mulosd.methods.draft_only:DraftOnly",
        "zipar": "mulosd.methods.zipar:ZipAR",
        "mulosd": "mulosd.methods.mulosd:MuLoSD",
    },
    _problem,
    planned={
        "eagle": "no drafter is trained for these models; train one first",
        "eagle2": "no drafter is trained for these models; train one first",
        "lantern": "it needs an EAGLE drafter, and none is public for Tar; train one first",
    },
)


def build_method(name: str, knobs: Mapping[str, Any] | None = None, *, where: str = "") -> SamplerKnobs:
    """The validated configuration of method `name`; unknown names and knobs raise ConfigError with the nearest.

    A knob that was given and does nothing is refused, at its default too.
    """
    method = configure(name, knobs or {}, where=where)
    check_given([(method, knobs or {})])
    return method


def all_knobs(name: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Every knob with its value, of a stored method and its set knobs; just these where its package is not installed.

    Nothing is checked: what was stored may be refused today.
    """
    defaults = {knob.name: knob.default for knob in declared_knobs(METHODS[name]).values()} if name in METHODS else {}
    return {**defaults, **knobs}


def configure(name: str, knobs: Mapping[str, Any], *, where: str = "") -> SamplerKnobs:
    """`build_method` for one of several configurations that stand together: see `check_given`."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, where)
    known = declared_knobs(METHODS[name])
    for key in knobs:
        if key not in known:
            raise unknown_name(f"{name} knob", key, known, where)
    return METHODS[name](**{key: known[key].coerce(name, value) for key, value in knobs.items()})
