"""Every shipped sweep validates, plans, and says in its header how to run it, what it costs and what to expect."""

from pathlib import Path

import pytest

from pipelines.plan import build_plan
from pipelines.sweep import load_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "sweeps").rglob("*.yaml"))
MIN_SWEEPS = 3
HEADER_FIELDS = ("command:", "cost:", "expect:")


def missing_fields(text: str) -> list[str]:
    """Header fields that the comment block at the top of a sweep lacks."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    header = "\n".join(lines[:end]).lower()
    return [field for field in HEADER_FIELDS if field not in header]


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
