"""Every shipped sweep validates, plans, has the control rows, and says how to run it, what it costs, what to expect."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.plan import Plan, build_plan
from pipelines.sweep import load_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "sweeps").rglob("*.yaml"))
MIN_SWEEPS = 17
MIN_CELLS = 90  # over the files whose prompts ship with the project
CONTROLS = {"ar", "draft-only"}
HEADER_FIELDS = ("command:", "cost:", "expect:")


def missing_fields(text: str) -> list[str]:
    """Header fields that the comment block at the top of a sweep lacks."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = "\n".join(lines[:end]).lower()
    return [field for field in HEADER_FIELDS if field not in header]


def missing_controls(plan: Plan) -> set[str]:
    """Control rows (architecture 8) that a plan lacks."""
    return CONTROLS - {cell.method.name for cell in plan.cells}


def test_sweeps_are_shipped() -> None:
    assert len(SWEEPS) >= MIN_SWEEPS
    assert (ROOT / "sweeps" / "smoke.yaml") in SWEEPS


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: str(p.relative_to(ROOT)))
def test_header(path: Path) -> None:
    assert missing_fields(path.read_text(encoding="utf-8")) == []


def test_the_header_check_can_fail() -> None:
    assert missing_fields("# command: mulosd run x\nname: x  # cost: 1, expect: 2\n") == ["cost:", "expect:"]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: str(p.relative_to(ROOT)))
def test_validates_and_plans(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweep = load_sweep(path)
    source = sweep.prompts.get("path")
    if source and not Path(source).exists():
        pytest.skip(f"{source} is not here: prompt files of the benchmarks lie beside the checkout")
    plan = build_plan(sweep)
    assert plan.cells
    assert all(cell.chunks for cell in plan.cells)
    assert missing_controls(plan) == set()


def test_the_control_check_can_fail() -> None:
    sweep = load_sweep(ROOT / "sweeps" / "smoke.yaml")
    plan = build_plan(replace(sweep, methods=tuple(m for m in sweep.methods if m.name != "ar")))
    assert missing_controls(plan) == {"ar"}


def test_shipped_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweeps = [sweep for sweep in map(load_sweep, SWEEPS) if not sweep.prompts.get("path")]
    assert sum(len(build_plan(sweep).cells) for sweep in sweeps) >= MIN_CELLS
