"""What a job upload holds: the files of a working directory that Ray would send, by Ray's own rules."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mulosd.errors import ConfigError

MAX_BYTES = 512 * 2**20  # what Ray takes as one package
NUM_SHOWN = 5


@dataclass(frozen=True)
class Upload:
    """Files of a working directory: (path relative to it, bytes), the largest first."""

    folder: Path
    files: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes before compression."""
        return sum(size for _, size in self.files)

    def lines(self) -> list[str]:
        """Number, size and the largest files, for people."""
        head = f"working directory {self.folder}: {len(self.files)} files, {_mib(self.total)}"
        return [head, *(f"  {_mib(size):>10}  {name}" for name, size in self.files[:NUM_SHOWN])]


def examine(folder: Path) -> Upload:
    """The upload of `folder`; ConfigError where it is none or where it cannot fit into one package."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise ConfigError(f"the working directory {folder} is no folder; give one with --working-dir.")
    upload = Upload(folder, tuple(sorted(_files(folder), key=lambda file: (-file[1], file[0]))))
    if upload.total > MAX_BYTES:
        listed = "; ".join(f"{name} {_mib(size)}" for name, size in upload.files[:NUM_SHOWN])
        raise ConfigError(
            f"the working directory {folder} holds {_mib(upload.total)}, Ray takes {_mib(MAX_BYTES)}; list what the "
            f"job does not need in {folder / '.rayignore'} (the largest: {listed})."
        )
    return upload


def _files(folder: Path) -> list[tuple[str, int]]:
    # Ray's walk is not public; another one would show other files than are sent.
    from ray._private.ray_constants import RAY_RUNTIME_ENV_IGNORE_GITIGNORE, get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    found: list[tuple[str, int]] = []

    def keep(path: Path) -> None:
        if path.is_file():
            found.append((path.relative_to(folder).as_posix(), path.stat().st_size))

    excludes: list[Callable[[Path], bool]] = [_get_excludes(folder, get_runtime_env_default_excludes())]
    with_gitignore = os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    _dir_travel(folder, excludes, keep, include_gitignore=with_gitignore, logger=_silent())
    return found


def _silent() -> object:
    import logging

    return logging.getLogger("mulosd.upload.walk")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
