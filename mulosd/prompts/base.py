"""What all prompt loaders share: strict settings, safe ids, files that say what is wrong with them, the list's hash."""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError, unknown_name
from mulosd.files.reading import read_file
from mulosd.types import Prompt

# Ids become parts of sample ids and of exported file names: no separator, no leading dot.
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Spec = Mapping[str, Any]


def check_keys(spec: Spec, allowed: Collection[str]) -> str:
    """The set's name for error texts; raises ConfigError for a key that the set does not have, with the nearest."""
    where = f"prompts {spec['name']}"
    for key in spec:
        if key != "name" and key not in allowed:
            raise unknown_name("key", str(key), allowed, where)
    return where


def whole_number(spec: Spec, key: str, *, default: int | None, low: int) -> int | None:
    """An integer setting of at least `low`; an absent or null one is `default`."""
    value = spec.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(
            f"prompts {spec['name']}: {key} = {value!r} is not allowed; give a whole number from {low} on."
        )
    return value


def required_path(spec: Spec, what: str) -> Path:
    """The setting `path`; raises ConfigError when it is absent or no text."""
    path = spec.get("path")
    if not isinstance(path, str | Path) or not str(path):
        raise ConfigError(f"prompts {spec['name']}: path = {path!r} is not allowed; give {what}.")
    return Path(os.path.expanduser(path))  # a home that is not there stays as it is written, and is not found


def read_lines(path: Path, what: str) -> list[str]:
    """Lines of a UTF-8 file without line ends and byte order mark.

    Raises DataError naming the file, and the line of a broken byte.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give the path of {what}.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of {what}.") from error
    try:
        return data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8 text ({error.reason}); save the file as UTF-8.") from error


def check_id(prompt_id: str, where: str) -> str:
    """The id itself; raises DataError when it could not be a part of a file name."""
    if not _SAFE_ID.fullmatch(prompt_id):
        raise DataError(
            f"{where}: {prompt_id!r} cannot be a prompt id; allowed are 1 to 128 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit: rename it."
        )
    return prompt_id


def check_text(text: str, where: str) -> None:
    """DataError for text that cannot be written: a lone surrogate, as JSON's \\ud800 or a broken argument gives it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {text[error.start]!r} at character {error.start + 1} is half of a pair and no character; "
            "correct the text."
        ) from error


def prompt_list_hash(prompts: Sequence[Prompt]) -> str:
    """sha256 (hex) of the list's canonical JSON: ids, texts, metadata and their order."""
    listed = [[p.benchmark, p.prompt_id, p.text, p.metadata] for p in prompts]
    text = json.dumps(listed, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
