"""Errors that a user can fix: one sentence with what, where, what is allowed and what to do.

Everything else that is raised is a bug and keeps its traceback. The command line prints a
`UserError` without a traceback and exits with code 2. All subclasses pickle, since workers raise them.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class UserError(Exception):
    """A problem the user can fix; `str(error)` is the whole sentence to print."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(UserError, ValueError):
    """An input or staged file is missing, broken or does not match its manifest."""


class EnvironmentProblem(UserError, RuntimeError):
    """The machine cannot do what was asked (no write access, package or device missing)."""


class DecodingFailed(UserError):
    """Images of a batch met numbers that are not finite.

    results: per image its `mulosd.types.Decoded`, or the reason (str) for which it has none.
    """

    def __init__(self, message: str, results: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.results = tuple(results)


def unknown_name(
    kind: str, name: str, known: Iterable[str], where: str = "", *, planned: Mapping[str, str] | None = None
) -> ConfigError:
    """The error for a name that is not among the known ones: these, and the nearest.

    planned: names that are not built yet, and what they wait for (default: those of `known` where it is a registry).
    """
    names = sorted(known)
    planned = getattr(known, "planned", {}) if planned is None else planned
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    place = f"{where}: " if where else ""
    if name in planned:
        return ConfigError(f"{place}{kind} {name!r} is not built yet: {planned[name]}; allowed: {', '.join(names)}.")
    return ConfigError(f"{place}unknown {kind} {name!r}; allowed: {', '.join(names)}.{hint}")


def join_some(names: Iterable[object], most: int = 5) -> str:
    """The first names, and how many more there are."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def first_line(error: Exception) -> str:
    """The first line of the text of a library's error that says something; the name of its class where none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
