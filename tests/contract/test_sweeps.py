"""Every shipped sweep validates, plans, has the control rows, and says how to run it, what it costs, what to expect."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError
from pipelines.cli.main import cli
from pipelines.plan.build import build_plan
from pipelines.plan.cells import Plan
from pipelines.plan.sweep import load_sweep
from tests.table1 import RUNNABLE, WAITING

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "sweeps").rglob("*.yaml"))
READY = [path for path in SWEEPS if path.stem not in WAITING]
MIN_SWEEPS = 23
MIN_CELLS = 90  # over the files whose prompts ship with the project
ABLATIONS = {"upsamplers", "pooling", "rejection", "redraft", "parallel"}
CONTROLS = {"ar", "draft-only"}
HEADER_FIELDS = ("command:", "cost:", "expect:")


def missing_fields(text: str) -> list[str]:
    """Header fields that the comment block at the top of a sweep lacks."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = "\n".join(lines[:end]).lower()
    return [field for field in HEADER_FIELDS if field not in header]


def missing_controls(plan: Plan) -> set[str]:
    """Control rows that a plan lacks."""
    return CONTROLS - {cell.method.name for cell in plan.cells}


def test_sweeps_are_shipped() -> None:
    assert len(SWEEPS) >= MIN_SWEEPS
    names = {path.stem for path in SWEEPS}
    assert {"smoke", "tau-curve", *(f"ablation-{name}" for name in ABLATIONS)} <= names


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: str(p.relative_to(ROOT)))
def test_header(path: Path) -> None:
    assert missing_fields(path.read_text(encoding="utf-8")) == []


def test_the_header_check_can_fail() -> None:
    assert missing_fields("# command: mulosd run x\nname: x  # cost: 1, expect: 2\n") == ["cost:", "expect:"]


@pytest.mark.parametrize("path", READY, ids=lambda p: str(p.relative_to(ROOT)))
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


def test_a_file_of_table_1_runs_or_waits() -> None:
    shipped = {path.stem for path in SWEEPS if path.stem.startswith("table1")}
    assert shipped == RUNNABLE.keys() | WAITING.keys()
    assert not RUNNABLE.keys() & WAITING.keys()


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_refused_naming_every_missing_piece(name: str) -> None:
    done = CliRunner().invoke(cli, ["plan", name])
    assert isinstance(done.exception, ConfigError)
    problems = str(done.exception).splitlines()
    assert len(problems) == len(WAITING[name])  # nothing else is wrong with the file
    for missing, problem in zip(WAITING[name], problems, strict=True):
        assert f"{missing!r} is not built yet: " in problem
    assert "refused until then" in (ROOT / "sweeps" / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["table1-eagle2", "table1-lantern"])
def test_a_row_that_waits_has_what_exists_beside_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the missing method taken out the file plans: the rest of it is right."""
    monkeypatch.chdir(ROOT)
    plan = build_plan(load_sweep(ROOT / "sweeps" / f"{name}.yaml", ["methods.2={method: zipar}"]))
    assert missing_controls(plan) == set()


@pytest.mark.parametrize("name", ["table1-geneval", "table1-dpg", "table1-coco"])
def test_a_column_that_waits_has_the_rows_of_the_targets(name: str) -> None:
    """With the missing evaluators taken out each target has the methods of its own file."""
    sweep = load_sweep(ROOT / "sweeps" / f"{name}.yaml", ["evaluators=[]"])
    assert {f"table1-{target}" for target in sweep.targets} == RUNNABLE.keys()
    for target in sweep.targets:
        assert sweep.methods == load_sweep(ROOT / "sweeps" / f"table1-{target}.yaml").methods


def test_shipped_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweeps = [sweep for sweep in map(load_sweep, READY) if not sweep.prompts.get("path")]
    assert sum(len(build_plan(sweep).cells) for sweep in sweeps) >= MIN_CELLS
