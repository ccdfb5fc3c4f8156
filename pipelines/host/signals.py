"""SIGTERM, as `ray job stop` and schedulers send it: end at once, tidily, and say how to go on.

Ray waits three seconds before SIGKILL. Nothing depends on them: what is published stays published and the same
command continues after either signal. The time is used to end workers and to note the state in progress.json.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM


@contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143) in the main thread, so that every `finally` runs; elsewhere do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the tidying up
        log.warning("stopped by SIGTERM; the same command continues where this run stops")
        raise SystemExit(EXIT_CODE)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException as error:
        if stopped:  # Ray turns what is raised inside its calls into an exit code of its own
            raise SystemExit(EXIT_CODE) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
