"""Reader-writer lock per host: workers share it, a timing run holds it exclusively.

Two kernel locks of this user. A timing run closes the gate first, so that steady work cannot keep it waiting for
ever, and then waits for the work that has begun: at most one chunk per worker. A dead process's locks die with it.
"""

import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = "MULOSD_LOCK_DIR"  # environment variable: where the two files are (default: the temporary folder)


@contextmanager
def working() -> Iterator[None]:
    """Around decoding or scoring: begins when nobody is timing on this host."""
    gate, host = _open("gate"), _open("host")
    try:
        _lock(gate, fcntl.LOCK_SH, "a bench run is timing on this host; waiting for it")
        fcntl.flock(host, fcntl.LOCK_SH)  # free or shared: a timing run needs the gate first
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
    finally:
        os.close(gate)
        os.close(host)


@contextmanager
def timing() -> Iterator[None]:
    """Around a timing run: begins when the work on this host has stopped, and keeps new work waiting."""
    gate, host = _open("gate"), _open("host")
    try:
        _lock(gate, fcntl.LOCK_EX, "another bench run is timing on this host; waiting for it")
        _lock(host, fcntl.LOCK_EX, "waiting for the chunks that other runs on this host have begun")
        yield
    finally:
        os.close(gate)
        os.close(host)


def _open(name: str) -> int:
    folder = Path(os.environ.get(FOLDER) or tempfile.gettempdir())
    return os.open(folder / f"mulosd-{os.getuid()}-{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _lock(handle: int, kind: int, text: str) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        log.warning(text)
        fcntl.flock(handle, kind)
