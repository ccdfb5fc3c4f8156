"""What stands under a name: built-in entries, and those that other installed packages add by entry points. Light.

An entry is written as in the metadata of a package, "package.module:attribute" or just "package.module", and imported
when it is first asked for. Built-in names are looked up without reading what is installed, so that the command line
starts fast, and no package can take them over.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from mulosd.errors import EnvironmentProblem

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def load_object(target: str) -> Any:
    """The object that "package.module:attribute" names, or the module itself; raises what the import raises."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute) if attribute else import_module(module)


class Registry(Mapping[str, T], Generic[T]):
    """Name -> object, of built-in entries and of the entry-point group `group`, which iterate last.

    problem: says what is wrong with an object of another package ("it is not a subclass of ..."), None if nothing is.
    planned: names that users will look for here, and what they wait for.
    EnvironmentProblem, in one sentence with the package, for an entry of another package that has a name already taken
    or that cannot be loaded.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, str],
        problem: Callable[[str, Any], str | None],
        *,
        planned: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.group, self._built_in, self._problem = kind, group, built_in, problem
        self.planned = planned or {}
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            if name in self._built_in:
                self._loaded[name] = load_object(self._built_in[name])
            else:
                self._loaded[name] = self._load(self._added[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._added

    def __iter__(self) -> Iterator[str]:
        return iter((*self._built_in, *self._added))

    def __len__(self) -> int:
        return len(self._built_in) + len(self._added)

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        """The entries of other packages."""
        added: dict[str, EntryPoint] = {}
        for entry in sorted(set(_installed(self.group)), key=lambda entry: (entry.name, entry.value)):
            if not _NAME.fullmatch(entry.name):
                raise self._refused(entry, "its name may hold only lower-case letters, digits, '.', '_' and '-'")
            if entry.name in self._built_in:
                raise self._refused(entry, f"the name belongs to a built-in {self.kind}")
            if entry.name in added:
                raise self._refused(entry, f"{_package(added[entry.name])} has a {self.kind} of that name too")
            added[entry.name] = entry
        return added

    def _load(self, entry: EntryPoint) -> T:
        try:
            found = entry.load()
            problem = self._problem(entry.name, found)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._refused(entry, f"loading {entry.value} fails with {reason}") from error
        if problem:
            raise self._refused(entry, f"of {entry.value}, {problem}")
        return found  # type: ignore[no-any-return]

    def _refused(self, entry: EntryPoint, reason: str) -> EnvironmentProblem:
        where = f"{self.kind} {entry.name!r} of {_package(entry)} (entry-point group {self.group})"
        return EnvironmentProblem(f"{where} cannot be used: {reason}; correct or uninstall the package.")


@cache
def _installed(group: str) -> EntryPoints:
    """The entry points of all packages: reading them takes tens of milliseconds."""
    return entry_points(group=group)


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
