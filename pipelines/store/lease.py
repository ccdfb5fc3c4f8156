"""A lock with a lease on a shared folder: one holder at a time, and a dead holder's lock is taken over.

Two parts, since neither is enough by itself. The kernel's lock on the file ends with its process, whatever ends it; it
reaches as far as the file system carries it. The lease, which the holder renews inside the file, also reaches hosts
that share the folder without kernel locks: another host takes over only after it has *watched* the lease stand still
for `LEASE_S`, so that no two clocks are ever compared. A holder that was suspended past its lease finds another
holder's name in the file and stops (`Lease.check`) before it writes.
"""

import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulosd.errors import EnvironmentProblem

log = logging.getLogger(__name__)

LEASE_S = 60.0  # how long a lease of another host must stand still before it is taken over
RENEW_S = LEASE_S / 4
POLL_S = 0.5
SAY_S = 30.0  # between two log lines of one that waits


class Locked(EnvironmentProblem):
    """Another run holds the lock and waiting was not wanted."""


@dataclass
class Lease:
    """A held lock. `check()` before every write that only the holder may do."""

    path: Path
    handle: int
    holder: dict[str, Any]

    def check(self) -> None:
        """EnvironmentProblem when another run has taken over the lease."""
        found = _read(self.handle)
        if found.get("token") != self.holder["token"]:
            raise EnvironmentProblem(
                f"{self.path.parent}: {_name(found)} took over the lease while this run was stalled; "
                "run the command again when that one is done."
            )

    def renew(self, beat: int) -> None:
        """Write a sign of life, unless another holder's name stands there."""
        if _read(self.handle).get("token") == self.holder["token"]:
            _write(self.handle, {**self.holder, "beat": beat})


@contextmanager
def hold(path: Path, *, wait: bool = True) -> Iterator[Lease]:
    """Hold the lock `path`; waits for its holder, or raises `Locked` with the holder's name when wait=False."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(path, handle, wait)
        holder = {"token": secrets.token_hex(8), "host": socket.gethostname(), "pid": os.getpid()}
        _write(handle, {**holder, "beat": 0})
        os.fsync(handle)
        lease = Lease(path, handle, holder)
        _pulse.add(lease)
        try:
            yield lease
        finally:
            _pulse.remove(lease)
            if _read(handle).get("token") == holder["token"]:
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)  # lets go of the kernel's lock


def _acquire(path: Path, handle: int, wait: bool) -> None:
    """Return holding the kernel's lock with no living lease of another host in the file."""
    said = 0.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(handle)
        except OSError as error:
            raise EnvironmentProblem(
                f"{path} cannot be locked ({error.strerror or error}); use an --out folder whose file system can lock."
            ) from error
        else:
            holder = _read(handle)
            # A holder of this host is dead, or the kernel would not have given us its lock.
            if not holder or holder.get("host") == socket.gethostname() or _stands_still(handle, holder, wait):
                return
            fcntl.flock(handle, fcntl.LOCK_UN)
        if not wait:
            raise Locked(f"{path.parent} is locked by {_name(holder)}; wait for that run or stop it.")
        if time.monotonic() - said > SAY_S:
            log.warning("%s is locked by %s; waiting for that run", path.parent, _name(holder))
            said = time.monotonic()
        time.sleep(POLL_S)


def _stands_still(handle: int, holder: dict[str, Any], wait: bool) -> bool:
    """Whether the lease of another host is not renewed within LEASE_S (not looked for where nobody wants to wait)."""
    end = time.monotonic() + LEASE_S
    while wait and time.monotonic() < end:
        time.sleep(POLL_S)
        if _read(handle) != holder:
            return False
    if wait:
        log.warning("the lease of %s was not renewed for %.0f s; taking over its lock", _name(holder), LEASE_S)
    return wait


class _Pulse:
    """One thread that renews all leases of this process while it holds any."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._leases: list[Lease] = []
        self._over = threading.Event()

    def add(self, lease: Lease) -> None:
        with self._guard:
            self._leases.append(lease)
            if len(self._leases) == 1:
                self._over = threading.Event()
                threading.Thread(target=self._run, args=(self._over,), daemon=True, name="leases").start()

    def remove(self, lease: Lease) -> None:
        with self._guard:
            self._leases.remove(lease)
            if not self._leases:
                self._over.set()

    def _run(self, over: threading.Event) -> None:
        beat = 0
        while not over.wait(RENEW_S):
            beat += 1
            with self._guard:  # so that no lease is renewed after its file was closed
                for lease in self._leases:
                    lease.renew(beat)


_pulse = _Pulse()


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if "pid" in holder else "another run"


def _read(handle: int) -> dict[str, Any]:
    """The holder that the file names; {} where it is empty or was cut while it was written."""
    try:
        value = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _write(handle: int, holder: dict[str, Any]) -> None:
    data = json.dumps(holder).encode()
    os.ftruncate(handle, len(data))
    os.pwrite(handle, data, 0)
