"""Work shares a host, timing has it alone."""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipelines.host import timing_lock as devices


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.FOLDER, str(tmp_path))


def wait_until_held(name: str) -> None:
    """Until some thread has the lock `name`."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        handle = devices._open(name)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(handle)
        time.sleep(0.01)
    pytest.fail(f"nobody holds {name}")


def in_thread(enter: Callable[[], AbstractContextManager[None]], events: list[str], name: str) -> threading.Thread:
    def run() -> None:
        with enter():
            events.append(name)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    return thread


def test_workers_share_the_host() -> None:
    events: list[str] = []
    with devices.working():
        in_thread(devices.working, events, "other").join(timeout=60)
    assert events == ["other"]


def test_timing_waits_for_work_and_keeps_new_work_out() -> None:
    events: list[str] = []
    with devices.working():
        bench = in_thread(devices.timing, events, "bench")
        wait_until_held("gate")
        late = in_thread(devices.working, events, "late")  # would starve the bench run if it could pass
        assert events == []
    bench.join(timeout=60)
    late.join(timeout=60)
    assert events == ["bench", "late"]


def test_work_waits_for_timing() -> None:
    events: list[str] = []
    with devices.timing():
        work = in_thread(devices.working, events, "work")
        other = in_thread(devices.timing, events, "other bench")
        assert events == []
    work.join(timeout=60)
    other.join(timeout=60)
    assert sorted(events) == ["other bench", "work"]
