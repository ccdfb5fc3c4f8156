"""Standard output whose reader may leave (`mulosd run ... | head -1`): the work goes on, and nothing more is shown."""

import errno
import io
import sys
from typing import Any


class Outlet(io.FileIO):
    """An open descriptor; once a write fails, what follows is dropped. problem: why, "" while all is well."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.problem = ""
        self.is_reader_gone = False

    def write(self, data: Any) -> int | None:
        """Write, or drop what nobody can have."""
        if not self.problem:
            try:
                return super().write(data)
            except OSError as error:
                self.problem = error.strerror or str(error)
                self.is_reader_gone = error.errno == errno.EPIPE
        return memoryview(data).nbytes


def guard_streams() -> Outlet | None:
    """Make standard output and error outlast their readers; the outlet of standard output, None where it is closed."""
    outlets = {name: _guard(name) for name in ("stdout", "stderr")}
    return outlets["stdout"]


def _guard(name: str) -> Outlet | None:
    stream = getattr(sys, name)
    try:
        outlet = Outlet(stream.fileno())
    except (AttributeError, OSError, ValueError):  # closed when the process began
        return None
    is_prompt = name == "stderr" or outlet.isatty()
    buffer = io.BufferedWriter(outlet)
    # errors: a terminal without a dash, or a lone surrogate, shows "?" instead of a traceback.
    text = io.TextIOWrapper(buffer, encoding=stream.encoding, errors="replace", line_buffering=is_prompt)
    setattr(sys, name, text)
    return outlet
