"""Entries of other packages: found by name, refused in one sentence, never in place of a built-in one."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from mulosd import registry
from mulosd.errors import EnvironmentProblem
from mulosd.registry import Registry

GROUP = "mulosd.toys"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    entries: list[EntryPoint] = []
    monkeypatch.setattr(registry, "_installed", lambda group: EntryPoints(entries))
    return entries


def toys(**options: Any) -> Registry[Any]:
    problem = options.pop("problem", lambda name, found: None)
    return Registry("toy", GROUP, {"dumps": "json:dumps", "module": "json"}, problem, **options)


def test_built_in_entries_need_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed", lambda group: pytest.fail("looked at what is installed"))
    import json

    assert toys()["dumps"] is json.dumps
    assert toys()["module"] is json
    assert "dumps" in toys()


def test_a_choice_that_is_built_in_needs_nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed", lambda group: pytest.fail("looked at what is installed"))
    from mulosd.methods import METHODS, UPSAMPLERS, build_method

    for known in (METHODS, UPSAMPLERS):
        monkeypatch.delitem(vars(known), "_added", raising=False)
    assert build_method("draft-only", {"upsampler": "lanczos"}).upsampling() == ("lanczos", None)


def test_an_entry_of_another_package_is_found(installed: list[EntryPoint]) -> None:
    import math

    installed.append(EntryPoint("own", "math:sqrt", GROUP))
    found = toys()
    assert list(found) == ["dumps", "module", "own"]
    assert len(found) == 3
    assert found["own"] is math.sqrt
    with pytest.raises(KeyError):
        found["other"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([("own", "no_such_module:x")], "loading no_such_module:x fails with ModuleNotFoundError: No module named"),
        ([("own", "math:no_such")], "loading math:no_such fails with AttributeError"),
        ([("own", "math:pi")], "of math:pi, it is a number;"),
        (
            [("dumps", "math:sqrt")],
            "toy 'dumps' of an unnamed package (entry-point group mulosd.toys) cannot be used",
        ),
        ([("dumps", "math:sqrt")], "the name belongs to a built-in toy; correct or uninstall the package."),
        ([("own", "math:sqrt"), ("own", "math:sin")], "an unnamed package has a toy of that name too"),
        ([("Own One", "math:sqrt")], "its name may hold only lower-case letters, digits"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    installed: list[EntryPoint], entries: list[tuple[str, str]], text: str
) -> None:
    installed += [EntryPoint(name, value, GROUP) for name, value in entries]
    found = toys(problem=lambda name, item: "it is a number" if isinstance(item, float) else None)
    with pytest.raises(EnvironmentProblem) as caught:
        dict(found)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    import json

    assert found["dumps"] is json.dumps
