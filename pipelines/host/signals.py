"""SIGTERM and Ctrl-C at any time: end at once, tidily, with the same exit codes, and say how to go on.

SIGTERM is what `ray job stop` and schedulers send; Ray waits three seconds before SIGKILL. Nothing depends on them:
what is published stays published and the same command continues. The time is used to end workers and to note the state
in progress.json.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
STOPPED_TEXT = "stopped by SIGTERM; the same command continues where this run stops"
INTERRUPTED_TEXT = "mulosd: interrupted; the same command continues where this one stopped."
AGAIN_S = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_depth = 0  # how often the handlers are in place: the entry point, a run in it, Ray in the run
_is_program = False  # whether this process is the command line
_stopping: list[int] = []  # the signal that is ending this process
_finished: list[int] = []  # the exit code, once the work is done
_said: list[int] = []


def install() -> None:
    """Handle signals from now on to the end of the process; only its entry point may do this."""
    global _depth, _is_program
    _depth, _is_program = 1, True
    _set_handlers()


def finish(code: int) -> None:
    """The work is done: a signal that comes now ends the process at once, with the code it would have had."""
    _finished.append(code)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143) and Ctrl-C into KeyboardInterrupt in the main thread, so that every `finally`
    runs; elsewhere do nothing. A second signal does not interrupt the tidying up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _depth
    before = _set_handlers()
    _depth += 1
    try:
        yield
    except BaseException as error:
        say_stopped()
        if _stopping and not isinstance(error, KeyboardInterrupt):
            # Libraries turn what is raised inside their calls into errors and exit codes of their own.
            raise _ending() from error
        raise
    finally:
        _depth -= 1
        if _depth == 0 or not _stopping:  # Ray's own handler must not come back while this process ends
            for number, handler in before.items():
                signal.signal(number, handler)
        if _depth == 0:
            _stopping.clear()
            _said.clear()


def say_stopped() -> None:
    """Log once that SIGTERM is ending this process; outside the handler, which may have interrupted a write."""
    if signal.SIGTERM in _stopping and not _said:
        _said.append(signal.SIGTERM)
        log.warning(STOPPED_TEXT)


def _set_handlers() -> dict[int, "signal._HANDLER"]:
    """Put the handlers in place; a signal that the starter of this process had ignored (`nohup`, `&`) stays so."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle)
    return {number: signal.SIG_DFL if handler is None else handler for number, handler in before.items()}


def _handle(number: int, frame: FrameType | None) -> None:
    if _finished:
        os._exit(_finished[0])
    if _stopping:
        return
    if _would_be_lost(frame):
        if _depth == 1 and _is_program:
            _end_at_once(number)
        later = threading.Timer(AGAIN_S, _send_again, (number,))
        later.daemon = True
        later.start()
        return
    _stopping.append(number)
    raise _ending()


def _end_at_once(number: int) -> None:
    """End a command that is still loading: it holds nothing that must be tidied up."""
    if number == signal.SIGTERM:
        text, code = STOPPED_TEXT, EXIT_CODE
    else:
        text, code = INTERRUPTED_TEXT, INTERRUPTED
    os.write(2, f"{text}\n".encode())
    os._exit(code)


def _ending() -> BaseException:
    return SystemExit(EXIT_CODE) if _stopping[0] == signal.SIGTERM else KeyboardInterrupt()


def _send_again(number: int) -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, number)


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception would not arrive: in an import, where the C++ of a library that is being loaded aborts the
    process, or in a finalizer, which swallows it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
