"""What one entry of `methods` stands for: fixed, gridded, linked, listed and varied knobs."""

from typing import Any

import pytest

from pipelines.plan import knob_axes
from pipelines.plan.knob_axes import expand


def settings(**entry: Any) -> list[dict[str, Any]]:
    problems: list[str] = []
    found = expand({"method": "mulosd", **entry}, "methods[0]", problems.append)
    assert problems == []
    return found


def problems(**entry: Any) -> list[str]:
    found: list[str] = []
    assert expand({"method": "mulosd", **entry}, "methods[0]", found.append) == []
    return found


def test_nothing_is_the_default() -> None:
    assert settings() == [{}]
    assert settings(set={"tau": 0.3}) == [{"tau": 0.3}]


def test_a_grid_has_every_combination() -> None:
    found = settings(set={"island_window": 2}, grid={"tau": [0.1, 0.2], "radius": [0, 1, 2]})
    assert len(found) == 6
    assert found[1] == {"island_window": 2, "tau": 0.1, "radius": 1}


def test_linked_knobs_move_together() -> None:
    assert settings(zip={"tau": [0.1, 0.2], "pool_k": [4, 8]}) == [{"tau": 0.1, "pool_k": 4}, {"tau": 0.2, "pool_k": 8}]
    two = settings(zip=[{"tau": [0.1, 0.2], "pool_k": [4, 8]}, {"radius": [0, 1], "draft_window": [2, 4]}])
    assert len(two) == 4
    assert {"tau": 0.1, "pool_k": 4, "radius": 1, "draft_window": 4} in two
    assert {"tau": 0.1, "pool_k": 8, "radius": 1, "draft_window": 4} not in two


def test_linked_knobs_and_a_grid_are_multiplied() -> None:
    assert len(settings(zip={"tau": [0.1, 0.2], "pool_k": [4, 8]}, grid={"radius": [0, 1, 2]})) == 6


def test_a_list_is_taken_as_it_is() -> None:
    assert settings(list=[{"tau": 0.1}, {"tau": 0.2, "radius": 0}]) == [{"tau": 0.1}, {"tau": 0.2, "radius": 0}]


def test_one_factor_at_a_time_around_a_default() -> None:
    found = settings(set={"tau": 0.2}, vary={"tau": [0.1, 0.2, 0.4], "radius": [0, 1]})
    assert found == [
        {"tau": 0.2},
        {"tau": 0.1},
        {"tau": 0.4},  # 0.2 is the default, which stands there once
        {"tau": 0.2, "radius": 0},  # radius 1 is the default too
    ]


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ({"zip": {"tau": [0.1, 0.2], "pool_k": [4]}}, "equally many values (tau has 2, pool_k has 1)"),
        ({"zip": {"tau": 0.1}}, "zip.tau = 0.1 is not allowed; give a list"),
        ({"zip": 3}, "are mappings of knobs"),
        ({"vary": {"tau": []}}, "at least one value"),
        ({"vary": [1]}, "are mappings of knobs"),
        ({"list": []}, "a list of mappings"),
        ({"list": [1]}, "a list of mappings"),
        ({"list": {"tau": 1}}, "a list of mappings"),
        ({"grid": {"tau": [1]}, "zip": {"tau": [1]}}, "tau stands in grid and in zip"),
        ({"zip": [{"tau": [1]}, {"tau": [2]}]}, "tau stands in zip[0] and in zip[1]"),
        ({"grid": {"tau": [1]}, "vary": {"tau": [2]}}, "tau stands in grid and in vary"),
        ({"set": {"tau": 1}, "list": [{"radius": 1}, {"tau": 2}]}, "tau stands in set and in list"),
        ({"set": 3}, "are mappings of knobs"),
        ({"grid": {"tau": list(range(400)), "radius": list(range(400))}}, "160000 configurations"),
    ],
)
def test_refused(entry: dict[str, Any], part: str) -> None:
    (problem,) = problems(**entry)
    assert part in problem
    assert problem.startswith("methods[0]")


def test_all_problems_at_once() -> None:
    assert len(problems(grid={"tau": 1, "radius": 2}, list=[])) == 3


def test_the_limit_itself_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knob_axes, "MAX_CONFIGURATIONS", 4)
    assert len(settings(grid={"tau": [1, 2], "radius": [1, 2]})) == 4
    assert "5 configurations" in problems(grid={"tau": [1, 2, 3, 4, 5]})[0]
