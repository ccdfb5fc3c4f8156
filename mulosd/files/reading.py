"""Files that a user gives, and JSON in them: read whole, or refused with a reason. Standard library only.

Pipes and devices are refused: a run reads its inputs more than once, and a pipe that nobody writes to never ends.
"""

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

MAX_DEPTH = 64  # levels of nesting: whatever walks a value by recursion stays far below Python's limit

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def read_file(path: Path) -> bytes:
    """The content of a regular file; OSError with the reason as `strerror` for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without the flag, opening a pipe waits for its writer
    except ValueError as error:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "a pipe or a device; save its content as a file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def reason_of(error: OSError | ValueError) -> str:
    """What an error of `read_file` or `parse_json` says, without the path that the system adds."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def is_file(path: Path) -> bool:
    """`Path.is_file`, but False where that raises: for a name that no file can have."""
    return os.path.isfile(path)


def parse_json(text: str | bytes, *, allow_nan: bool = False) -> Any:
    """`json.loads`, but ValueError also for deep nesting, and for NaN and infinities unless allowed."""
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _refuse)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_nesting(value)
    return value


def check_nesting(value: Any, max_items: float = float("inf")) -> None:
    """ValueError for a value of lists and dicts nested more than MAX_DEPTH levels deep, or of more than `max_items`
    items, of which one that occurs in several places counts in each."""
    level, num_items = [value], 0
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item)]
        num_items += len(level)
        if num_items > max_items:
            raise ValueError(f"more than {max_items:,} items")
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
