"""Files that a knob names, pinned to their content: `/absolute/path#sha256:<64 hexadecimal digits>`. No torch.

A plan pins them, so that a worker in another directory finds the file and refuses one that has changed since, and so
that a key can hold the content in place of the path.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from mulosd.errors import DataError
from mulosd.files.publish import file_sha256
from mulosd.files.reading import is_file

MARK = "#sha256:"


def pin_file(name: str) -> str:
    """The pinned name of a file; DataError where there is none, or where `name` is pinned to other content."""
    path = checked_file(name)
    return f"{path.absolute()}{MARK}{file_sha256(path)}"


def checked_file(name: str) -> Path:
    """The path in a name, pinned or not; DataError where no file is there, or one with other content than pinned."""
    text, mark, expected = name.partition(MARK)
    path = Path(text)
    if not is_file(path):
        raise DataError(f"{text}: there is no such file; give the path of an existing one.")
    if mark and (found := file_sha256(path)) != expected:
        raise DataError(
            f"{text}: sha256 is {found[:12]}…, expected {expected[:12]}…; restore the file, or run the command "
            "again to use it as it is."
        )
    return path


def content_of(pinned: str) -> str:
    """`sha256:...` of a pinned name: what a key holds."""
    text, mark, digest = pinned.partition(MARK)
    if not mark:
        raise ValueError(f"{text} is not pinned")
    return f"{MARK[1:]}{digest}"


def short_name(value: object) -> object:
    """A pinned file as labels show it: `net.pth@3f2a91c4`, its name and the first digits of its content.

    Of the content only `sha256:3f2a91c4`; every other value is returned as it is.
    """
    found = re.fullmatch(r"(?:(.*)#)?sha256:([0-9a-f]{64})", value, re.DOTALL) if isinstance(value, str) else None
    if found is None:
        return value
    path, digest = found.groups()
    return f"sha256:{digest[:8]}" if path is None else f"{Path(path).name}@{digest[:8]}"


def label_of(*names: str, knobs: Iterable[tuple[str, object]]) -> str:
    """`tiny-mid mulosd tau=0.2 radius=1`: names, then knobs as given; of a pinned file its short name."""
    return " ".join([*names, *(f"{key}={short_name(value)}" for key, value in knobs)])
