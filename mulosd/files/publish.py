"""Atomic publishing of files and canonical JSON. Standard library only.

A reader sees the old file or the new one, never a part: temp file in the same folder, fsync, rename,
fsync of the folder. The temp name starts with a dot and does not end in `.parquet`, because dataset
readers pick up leftovers otherwise.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.files.folders import refuse_package
from mulosd.files.reading import parse_json


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys, no blanks and no non-finite numbers: equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256_hex(data: bytes) -> str:
    """Hexadecimal sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def problem_of_writing(folder: Path) -> str:
    """Why no file can be written in `folder` or, before it is made, in the nearest of its parents; "" where one can."""
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(folder)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def nearest_folder(folder: Path) -> Path:
    """`folder`, or the nearest of its parents that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())


def publish_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically; raises EnvironmentProblem where the file system refuses."""
    with _written(path, data) as temp:
        temp.replace(path)


def publish_over(path: Path, data: bytes, base: str | None) -> bool:
    """Publish `data` only where `path` still holds what the caller saw: the content with sha256 `base`, None for no
    file. False, with nothing changed, where another writer was first.
    """
    with _written(path, data) as temp:
        if base is None:
            return place_new(temp, path)
        if not path.exists() or sha256_hex(path.read_bytes()) != base:
            return False
        temp.replace(path)
    return True


def place_new(temp: Path, path: Path) -> bool:
    """Move the file `temp` to `path` of the same folder; False, with nothing changed, where a file is there already."""
    try:
        os.link(temp, path)  # unlike a rename it fails where a file is
    except FileExistsError:
        return False
    except OSError:
        # Many file systems have no hard links: exFAT, most object stores, some network folders. There an empty file
        # claims the name first. Readers go by the manifest, so they do not meet it, and one that a crash leaves is
        # replaced like any damaged chunk that nothing recorded.
        return _claim_and_replace(temp, path)
    temp.unlink()
    return True


def _claim_and_replace(temp: Path, path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    try:
        temp.replace(path)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """A synced temp file beside `path` with `data`, to be moved or linked; it is gone afterwards."""
    refuse_package(path)
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temp
        temp.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temp.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise EnvironmentProblem(
            f"{path} cannot be written ({error.strerror or error}); free some space or choose a writable --out folder."
        ) from error


def publish_json(path: Path, value: Any) -> None:
    """Publish `value` as readable JSON together with a digest of itself, for `read_json`."""
    publish_bytes(path, _render(value))


def read_json(path: Path) -> Any:
    """The value that `publish_json` wrote; DataError when the file is missing or any byte of it changed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); run the sweep again.") from error
    try:
        value = parse_json(data)["value"]
        intact = data == _render(value)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DataError(f"{path} is damaged or was edited by hand; delete the file and run the sweep again.")
    return value


def _render(value: Any) -> bytes:
    body = {"sha256": sha256_hex(canonical_json(value)), "value": value}
    return (json.dumps(body, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # the file system cannot sync folders
            raise
    finally:
        os.close(handle)
