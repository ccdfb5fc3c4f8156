"""SIGTERM and SIGKILL to a run, and two runs of one sweep at the same time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mulosd.stage.verify import verify_store
from pipelines.host.signals import EXIT_CODE, stop_on_signals
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
        with stop_on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [before]
    with pytest.raises(SystemExit) as caught, stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143

    def as_ray_does() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            raise SystemExit(1) from None

    with pytest.raises(SystemExit) as caught, stop_on_signals():
        as_ray_does()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_in_an_import_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside the C++ part of an import would abort the process."""
    text = "import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(0)\nLOADED = True\n"
    (tmp_path / "interrupted_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def run() -> None:
        with stop_on_signals():
            import_module("interrupted_import")
            time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert sys.modules["interrupted_import"].LOADED


def test_a_second_signal_does_not_interrupt_the_tidying_up() -> None:
    done = []

    def run() -> None:
        with stop_on_signals():
            try:
                with stop_on_signals():  # as around Ray
                    signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                done.append("tidied up")

    with pytest.raises(SystemExit) as caught:
        run()
    assert (caught.value.code, done) == (EXIT_CODE, ["tidied up"])


ENDS = """
import signal, sys
from pipelines.cli import entry, main
from pipelines.host import signals
def run():
    if when == "late":
        import atexit
        atexit.register(signal.raise_signal, number)
        return sys.exit(0)
    signal.raise_signal(number)
when, number = sys.argv[1], signal.Signals[sys.argv[2]]
main.main = run
entry.main()
"""


@pytest.mark.parametrize(
    ("when", "name", "code"),
    [("running", "SIGTERM", 143), ("running", "SIGINT", 130), ("late", "SIGTERM", 0), ("late", "SIGINT", 0)],
)
def test_the_exit_code_at_any_time(when: str, name: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, when, name], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert ("the same command continues" in done.stderr) == bool(code)


def test_a_signal_while_the_program_loads_ends_it_at_once(tmp_path: Path) -> None:
    """The first module that is imported sends the signal and never comes to an end."""
    for name, code in (("SIGTERM", 143), ("SIGINT", 130)):
        text = f"import signal, time\nsignal.raise_signal(signal.{name})\ntime.sleep(30)\n"
        (tmp_path / "click.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "plan", "smoke"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        assert len(done.stderr.splitlines()) == 1
        assert "the same command continues" in done.stderr


SAYS = """
import sys, time
from pipelines.cli import entry, main
def run():
    for i in range(3):
        print("line", i, flush=True)
        time.sleep(0.2 * (i == 0))
    open(sys.argv[1], "w").write("all done")
    sys.exit(0)
main.main = run
entry.main()
"""


@pytest.mark.parametrize("target", ["| head -1", "> /dev/full", ">&-"])
def test_a_reader_that_leaves_stops_nothing(tmp_path: Path, target: str) -> None:
    shell = f"set -o pipefail; {sys.executable} -c '{SAYS}' {tmp_path}/out {target}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert (tmp_path / "out").read_text() == "all done"
    is_full = "full" in target
    assert done.returncode == (2 if is_full else 0)
    assert done.stderr == (
        "mulosd: standard output could not be written (No space left on device).\n" if is_full else ""
    )
