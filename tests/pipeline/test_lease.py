"""The lock of a cell: one holder, dead ones taken over, one that was passed over stops."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mulosd.errors import EnvironmentProblem
from pipelines.store import lease
from pipelines.store.lease import Locked, hold

HOLD = """
import sys, time
from pathlib import Path
from pipelines.store.lease import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.05)


class Clock:
    """Sleeping takes no time; meanwhile a holder on another host renews its lease four times a lease, until it dies."""

    def __init__(self, path: Path, dies_at: float) -> None:
        self.path, self.dies_at, self.now = path, dies_at, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now < self.dies_at:
            foreign(self.path, beat=int(self.now // (lease.LEASE_S / 4)))


def foreign(path: Path, beat: int = 0) -> None:
    """A lease of a host whose kernel lock does not reach here."""
    path.write_text(json.dumps({"token": "theirs", "host": "elsewhere", "pid": 7, "beat": beat}))


def test_a_second_one_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    with (
        hold(tmp_path / ".lock"),
        pytest.raises(Locked, match=rf"locked by process {os.getpid()} on "),
        hold(tmp_path / ".lock", wait=False),
    ):
        pass
    with hold(tmp_path / ".lock", wait=False):
        pass
    assert (tmp_path / ".lock").read_bytes() == b""


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(Locked, match=f"process {process.pid}"), hold(path, wait=False):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert json.loads(path.read_text())["pid"] == process.pid  # it could not tidy up
    with hold(path, wait=False) as held:
        held.check()


def test_a_lease_of_another_host_is_waited_for_while_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    clock = Clock(path, dies_at=2 * lease.LEASE_S + 1)
    monkeypatch.setattr(lease, "time", clock)
    foreign(path)
    with pytest.raises(Locked, match="process 7 on elsewhere"), hold(path, wait=False):
        pass
    assert clock.now == 0
    with hold(path) as held:
        held.check()
    assert 3 * lease.LEASE_S <= clock.now <= 3 * lease.LEASE_S + 3 * lease.POLL_S


def test_a_holder_that_was_passed_over_stops(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with hold(path) as held:
        held.check()
        foreign(path)
        time.sleep(0.3)  # several renewals, none of which may overwrite the other's name
        with pytest.raises(EnvironmentProblem, match="process 7 on elsewhere took over the lease"):
            held.check()
    assert json.loads(path.read_text())["token"] == "theirs"


def test_leases_are_renewed_by_one_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # a stopped renewer may still be ending, and other libraries have threads
    with hold(tmp_path / "a"), hold(tmp_path / "b"):
        renewers = [t for t in threading.enumerate() if t.name == "leases" and t not in before]
        assert len(renewers) == 1
        end = time.monotonic() + 60
        while json.loads((tmp_path / "b").read_text() or "{}").get("beat", 0) == 0:
            assert time.monotonic() < end
            time.sleep(0.01)
    with hold(tmp_path / "a"):
        pass


def test_a_file_cut_short_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text('{"token": "th')
    with hold(tmp_path / ".lock", wait=False):
        pass


def test_without_locks_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(EnvironmentProblem, match=r"cannot be locked \(No locks available\)"), hold(tmp_path / ".lock"):
        pass
