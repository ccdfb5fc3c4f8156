"""Rooms import downwards only and no files import one another in a circle, and the check can fail."""

from pathlib import Path

import pytest

from tests.contract.floors import FLOORS, circles, import_graph, upward

ROOT = Path(__file__).parents[2]
PACKAGES = ("mulosd", "evaluators", "dashboards", "pipelines")


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return import_graph(ROOT, PACKAGES)


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_every_room_has_a_floor(package: str) -> None:
    rooms = {
        path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__"} == {room for floor in FLOORS[package] for room in floor}


def test_no_room_imports_upwards(graph: dict[str, set[str]]) -> None:
    assert upward(graph) == []


def test_no_circle(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 150
    assert circles(graph) == []


def plant(root: Path, **files: str) -> dict[str, set[str]]:
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return import_graph(root, PACKAGES)


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    found = plant(
        tmp_path,
        pipelines__plan__a="from pipelines.plan import b",
        pipelines__plan__b="def f():\n    import pipelines.plan.c",
        pipelines__plan__c="TARGET = 'pipelines.plan.a:f'",
        pipelines__plan__d="from pipelines.plan.a import f",
    )
    assert circles(found) == [["pipelines.plan.a", "pipelines.plan.b", "pipelines.plan.c"]]
    assert upward(found) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pipelines__store__planted", "from pipelines.run.driver import run_sweep"),
        ("pipelines__store__planted", "from pipelines.work.tasks import Task"),
        ("mulosd__models__planted", "def f():\n    from mulosd.targets.target import Target"),
        ("evaluators__types", "from evaluators.statistics.intervals import wilson"),
    ],
)
def test_a_planted_climb_is_caught(tmp_path: Path, module: str, line: str) -> None:
    others = {
        "pipelines__run__driver": "",
        "pipelines__work__tasks": "",
        "mulosd__targets__target": "",
        "evaluators__statistics__intervals": "",
    }
    assert len(upward(plant(tmp_path, **{**others, module: line}))) == 1


def test_only_a_registered_decoder_may_be_named(tmp_path: Path) -> None:
    named = plant(
        tmp_path,
        mulosd__methods__toy="DECODER = 'mulosd.decoding.toy:decode'",
        mulosd__decoding__toy="from mulosd.methods import toy",
    )
    assert (upward(named), circles(named)) == ([], [])
    imported = plant(tmp_path, mulosd__methods__toy="def f():\n    import mulosd.decoding.toy")
    assert upward(imported) == ["mulosd.methods.toy -> mulosd.decoding.toy"]


def test_what_goes_down_passes(tmp_path: Path) -> None:
    down = plant(
        tmp_path, pipelines__cli__main="import pipelines.run.driver", pipelines__run__driver="import mulosd.types"
    )
    assert upward(down) == []
