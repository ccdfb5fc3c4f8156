"""SIGTERM and SIGKILL to a run, and two runs of one sweep at the same time."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mulosd.stage.verify import verify_store
from pipelines.host.signals import EXIT_CODE, stop_on_sigterm
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from tests import fakes
from tests.fakes import toy_sweep

ROOT = Path(__file__).parents[2]


def start(out: Path, *args: Any, **env: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.ray.drive", str(out), "inprocess", *map(str, args)]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def images(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("cells/*/images/*.parquet")}


def test_sigterm_stops_tidily_and_the_run_continues(tmp_path: Path) -> None:
    process = start(tmp_path / "a", **{fakes.SLEEP_S: "0.3"})
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("done 4"):
        assert line, process.communicate()[1]
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == EXIT_CODE
    assert "stopped by SIGTERM; the same command continues" in errors
    progress = tmp_path / "a" / "sweeps" / build_plan(toy_sweep()).sweep_key / "progress.json"
    assert json.loads(progress.read_text())["state"] == "stopped"
    assert not list((tmp_path / "a").rglob(".*.tmp"))
    assert {path.read_bytes() for path in (tmp_path / "a").rglob(".lock")} == {b""}
    assert run_sweep(toy_sweep(), out=tmp_path / "a").cached >= 4
    run_sweep(toy_sweep(), out=tmp_path / "b")
    assert images(tmp_path / "a") == images(tmp_path / "b")


@pytest.mark.parametrize("kill_at", [-3, 3])
def test_sigkill_loses_nothing_that_was_published(tmp_path: Path, kill_at: int) -> None:
    process = start(tmp_path / "a", kill_at)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert run_sweep(toy_sweep(), out=tmp_path / "a").cached == 10  # three chunks, recorded or not
    run_sweep(toy_sweep(), out=tmp_path / "b")
    assert images(tmp_path / "a") == images(tmp_path / "b")
    assert verify_store(tmp_path / "a") == []


def test_a_grown_chunk_that_was_not_recorded_is_used(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=2)
    process = start(tmp_path, -1)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    report = run_sweep(toy_sweep(), out=tmp_path)
    assert report.cached >= 4
    assert verify_store(tmp_path) == []


def test_two_drivers_on_one_sweep_share_its_work(tmp_path: Path) -> None:
    process = start(tmp_path, **{fakes.SLEEP_S: "0.1"})
    assert process.stdout is not None
    assert process.stdout.readline() == "done 0\n"
    report = run_sweep(toy_sweep(), out=tmp_path)  # waits for the cells' locks, and finds the work done
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert (report.decoded, report.cached) == (0, 30)
    assert "decoded 30" in out
    assert verify_store(tmp_path) == []


def test_other_threads_and_other_handlers_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def other() -> None:
        with stop_on_sigterm():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [before]
    with pytest.raises(SystemExit) as caught, stop_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143

    def as_ray_does() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise SystemExit(1) from None

    with pytest.raises(SystemExit) as caught, stop_on_sigterm():
        as_ray_does()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
