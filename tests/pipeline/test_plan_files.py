"""A file that a knob names enters the cell's key by its content, wherever it lies."""

import json
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError, DataError, UserError
from mulosd.methods import DraftOnly, MuLoSD, build_method
from pipelines.cluster.submit import sweep_job
from pipelines.latency.bench import run_bench
from pipelines.plan.build import build_plan, check_networks, pin_files
from pipelines.plan.cells import Plan
from pipelines.plan.sweep import load_sweep, parse_sweep
from pipelines.run.driver import run_sweep
from tests.fakes import SWEEP, toy_sweep


def plan_with(sr_model: str | None) -> Plan:
    knobs: dict[str, Any] = {"upsampler": "sr", **({"sr_model": sr_model} if sr_model else {})}
    return build_plan(toy_sweep(methods=[{"method": "mulosd", "set": knobs}]))


def test_the_key_holds_the_content_and_the_method_the_pinned_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pth").write_bytes(b"one")
    (tmp_path / "b.pth").write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    cell = plan_with("a.pth").cells[0]
    assert cell.method.sr_model.startswith(f"{tmp_path}/a.pth#sha256:")  # type: ignore[attr-defined]
    assert str(tmp_path) not in str(cell.config)
    assert build_method("mulosd", cell.config["knobs"])  # stored knobs can be read back
    assert plan_with(str(tmp_path / "b.pth")).cells[0].key == cell.key
    (tmp_path / "b.pth").write_bytes(b"two")
    assert len({plan_with(name).cells[0].key for name in ("a.pth", "b.pth", None)}) == 3


def test_old_keys_stay() -> None:
    (cell,) = build_plan(toy_sweep(methods=[{"method": "draft-only"}])).cells
    assert cell.config["knobs"] == {}
    assert cell.method == DraftOnly()


def test_a_missing_file_is_refused_by_the_plan(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.pth: there is no such file"):
        plan_with(str(tmp_path / "absent.pth"))


def test_a_file_without_its_upsampler_is_refused() -> None:
    for cls in (DraftOnly, MuLoSD):
        with pytest.raises(
            ConfigError, match="does nothing with upsampler 'bicubic'; leave it out, or set upsampler to 'sr'"
        ):
            cls(sr_model="net.pth")


def test_a_run_checks_networks_before_it_starts(tmp_path: Path) -> None:
    pytest.importorskip("spandrel", reason="the packages of the extra `sr` are not installed")
    (tmp_path / "net.pth").write_bytes(b"no network")
    plan = plan_with(str(tmp_path / "net.pth"))
    with pytest.raises(UserError, match="not a whole torch file"):
        check_networks(plan)
    with pytest.raises(UserError, match="not a whole torch file"):
        run_sweep(plan.sweep, out=tmp_path / "store")
    assert not (tmp_path / "store").exists()
    check_networks(build_plan(toy_sweep()))


def test_a_job_is_told_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `run` takes a relative one, `submit` does: the job plans the same cells from another folder."""

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pth").write_bytes(b"a")
    (tmp_path / "b.pth").write_bytes(b"b")
    raw = {**SWEEP, "target": "tiny-mid", "prompts": {"name": "scenes"}, "evaluators": []}
    fixed = {"method": "draft-only", "set": {"upsampler": "sr", "sr_model": "a.pth"}}
    gridded = {"method": "mulosd", "grid": {"upsampler": ["sr"], "sr_model": ["a.pth", "/elsewhere/net.pth", "b.pth"]}}
    listed = {"method": "mulosd", "list": [{"tau": 0.2}, {"tau": 0.3, "upsampler": "sr", "sr_model": "b.pth"}]}
    raw["methods"] = [{"method": "ar"}, fixed, gridded, listed]
    (tmp_path / "toy.yaml").write_text(json.dumps(raw))
    command = sweep_job("toy.yaml", out=tmp_path, working_dir=tmp_path).entrypoint
    told = [command[i + 1] for i, word in enumerate(command) if word == "--set"]
    assert told == [
        f"methods.1.set.sr_model={tmp_path}/a.pth",
        f"methods.2.grid.sr_model.0={tmp_path}/a.pth",
        f"methods.2.grid.sr_model.2={tmp_path}/b.pth",
        f"methods.3.list.1.sr_model={tmp_path}/b.pth",
    ]
    here, there = load_sweep(tmp_path / "toy.yaml"), load_sweep(tmp_path / "toy.yaml", told)
    assert [pin_files(method) for method in there.methods[:3]] == [pin_files(method) for method in here.methods[:3]]
    assert all(Path(m.sr_model).is_absolute() for m in there.methods if getattr(m, "sr_model", None))
    (tmp_path / "b.pth").unlink()
    with pytest.raises(
        ConfigError, match=r"methods\.2\.grid\.sr_model\.2 = b\.pth is relative, and there is no such file here"
    ):
        sweep_job("toy.yaml", out=tmp_path, working_dir=tmp_path)


@pytest.mark.parametrize("command", [run_sweep, run_bench])
def test_absent_weights_leave_nothing_behind(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path / "none"))
    raw = {
        "name": "absent",
        "target": "llamagen-xl-512",
        "prompts": {"name": "scenes", "count": 4},
        "methods": [{"method": "ar"}],
        "bench": {"prompts": 1, "warmup": 1},
    }
    with pytest.raises(DataError, match="llamagen-xl-512 needs parts"):
        command(parse_sweep(raw), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
