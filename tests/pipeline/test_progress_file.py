"""progress.json: totals, an honest ETA, and a last word however a run ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.bars import progress_lines
from pipelines.host.job_env import JOB_CONFIG
from pipelines.plan.build import build_plan
from pipelines.run import progress_file as module
from pipelines.run.driver import RunFailed, run_sweep
from pipelines.run.progress import Progress
from pipelines.run.progress_file import progress_file, read_progress
from tests import fakes
from tests.fakes import toy_sweep


def content(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return value


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_totals_and_eta_at_the_rate_of_this_run(tmp_path: Path) -> None:
    clock, seen = Clock(), []
    with progress_file(tmp_path, then=seen.append, clock=clock) as show:
        show(Progress("decode", 40, 100, 40, 0))
        assert content(tmp_path)["eta_s"] is None
        clock.now += 10
        show(Progress("decode", 60, 100, 40, 1, "mulosd chunk 2"))
        at = content(tmp_path)
        # 20 images in 10 s, 40 are left: what was cached says nothing about the rate.
        assert (at["eta_s"], at["elapsed_s"], at["state"]) == (20.0, 10.0, "running")
        totals = [at[name] for name in ("stage", "label", "done", "total", "cached", "running", "failed")]
        assert totals == ["decode", "mulosd chunk 2", 60, 100, 40, 40, 1]
    assert len(seen) == 2
    assert (content(tmp_path)["state"], content(tmp_path)["eta_s"]) == ("finished", None)


def test_a_new_stage_is_written_at_once_and_others_rarely(tmp_path: Path) -> None:
    clock = Clock()
    with progress_file(tmp_path, then=lambda _: None, clock=clock) as show:
        show(Progress("decode", 0, 9, 0, 0))
        clock.now += module.MIN_INTERVAL_S / 2
        show(Progress("decode", 1, 9, 0, 0))
        assert content(tmp_path)["done"] == 0
        show(Progress("score", 2, 9, 2, 0))
        assert (content(tmp_path)["stage"], content(tmp_path)["done"]) == ("score", 2)
        show(Progress("score", 9, 9, 2, 0))
    assert content(tmp_path)["done"] == 9  # the last one is never left out
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]


def test_a_run_leaves_its_end_state(tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / build_plan(toy_sweep()).sweep_key
    run_sweep(toy_sweep(), out=tmp_path, dry_run=True)
    assert not folder.exists()
    run_sweep(toy_sweep(), out=tmp_path)
    at = content(folder)
    assert (at["state"], at["stage"], at["done"], at["failed"]) == ("finished", "score", at["total"], 0)


def test_a_failed_run_says_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fail.txt"
    path.write_text("prompt 5")
    monkeypatch.setenv(fakes.FAIL_FILE, str(path))
    with pytest.raises(RunFailed):
        run_sweep(toy_sweep(), out=tmp_path / "store")
    at = content(tmp_path / "store" / "sweeps" / build_plan(toy_sweep()).sweep_key)
    assert (at["state"], at["failed"], at["done"]) == ("stopped", 3, 30)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_goes_on_and_says_stopped(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted(at: Progress) -> None:
        raise error

    with pytest.raises(error), progress_file(tmp_path, then=interrupted) as show:
        show(Progress("decode", 1, 2, 0, 0))
    assert content(tmp_path)["state"] == "stopped"


def test_a_job_is_found_in_its_store_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(base_seed=1), out=tmp_path)
    monkeypatch.setenv(JOB_CONFIG, json.dumps({"metadata": {"job_submission_id": "sweep-toy-1"}}))
    run_sweep(toy_sweep(), out=tmp_path)
    said = read_progress(tmp_path, "sweep-toy-1")
    assert said is not None
    assert said.startswith("score: 9 of 9 chunks, 0 cached, 0 failed (finished, 20")
    assert read_progress(tmp_path, "sweep-toy-2") is None
    assert read_progress(tmp_path / "elsewhere", "sweep-toy-1") is None


@pytest.mark.parametrize(("eta_s", "left"), [(None, ""), (59.6, ", about 60 s left"), (5399, ", about 90 min left"),
                                             (9000, ", about 2.5 h left")])  # fmt: skip
def test_progress_in_words(eta_s: float | None, left: str) -> None:
    assert Progress("decode", 60, 100, 40, 1).line(eta_s) == f"decode: 60 of 100 images, 40 cached, 1 failed{left}"


def test_a_log_gets_a_line_a_minute_also_while_nothing_ends(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    with progress_lines(every_s=0.001) as show:
        show(Progress("decode", 0, 9, 0, 0))
        while said.count("decode: 0 of 9") < 3:
            said += capsys.readouterr().err
    with progress_lines() as show:
        for at in (Progress("decode", 0, 9, 0, 0), Progress("decode", 5, 9, 0, 0), Progress("decode", 9, 9, 0, 0)):
            show(at)
        show(Progress("score", 3, 3, 3, 0))
    stages = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()[-3:]]
    assert stages == ["decode: 0 of 9 images", "decode: 9 of 9 images", "score: 3 of 3 chunks"]
