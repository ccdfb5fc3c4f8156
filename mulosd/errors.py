"""Errors that a user can fix: one sentence with what, where, what is allowed and what to do.

Everything else that is raised is a bug and keeps its traceback. The command line prints a
`UserError` without a traceback and exits with code 2. All subclasses pickle, since workers raise them.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A problem the user can fix; `str(error)` is the whole sentence to print."""


class ConfigError(UserError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(UserError, ValueError):
    """An input or staged file is missing, broken or does not match its manifest."""


class EnvironmentProblem(UserError, RuntimeError):
    """The machine cannot do what was asked (no write access, package or device missing)."""


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that no registry holds: lists the allowed ones and the nearest."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    place = f"{where}: " if where else ""
    return ConfigError(f"{place}unknown {kind} {name!r}; allowed: {', '.join(names)}.{hint}")
