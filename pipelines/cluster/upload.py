"""What a job upload holds: the files of a working directory that Ray would send, by Ray's own rules."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mulosd.errors import ConfigError

MAX_BYTES = 512 * 2**20  # what Ray takes as one package
NUM_SHOWN = 5
IGNORE_FILES = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class Upload:
    """Files of a working directory: (path relative to it, bytes), the largest first."""

    folder: Path
    files: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes before compression."""
        return sum(size for _, size in self.files)

    @property
    def names(self) -> frozenset[str]:
        """Paths of the files, relative to the folder."""
        return frozenset(name for name, _ in self.files)

    def lines(self) -> list[str]:
        """Number, size and the largest files, for people."""
        head = f"working directory {self.folder}: {len(self.files)} files, {_mib(self.total)}"
        return [head, *(f"  {_mib(size):>10}  {name}" for name, size in self.files[:NUM_SHOWN])]


def examine(folder: Path) -> Upload:
    """The upload of `folder`; ConfigError where it is none or where it cannot fit into one package."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise ConfigError(f"the working directory {folder} is not a folder; give one with --working-dir.")
    upload = Upload(folder, tuple(sorted(_files(folder), key=lambda file: (-file[1], file[0]))))
    if upload.total > MAX_BYTES:
        listed = "; ".join(f"{name} {_mib(size)}" for name, size in upload.files[:NUM_SHOWN])
        raise ConfigError(
            f"the working directory {folder} has {_mib(upload.total)}, Ray accepts {_mib(MAX_BYTES)}; list what the "
            f"job does not need in {folder / '.rayignore'} (the largest: {listed})."
        )
    return upload


@contextmanager
def upload_folder(folder: Path, added: Mapping[str, Path]) -> Iterator[Path]:
    """The folder to send: `folder` itself, or for a while a copy of what Ray would send of it, with the files `added`
    (name in the upload -> file). The copy has no ignore files, so that all of it is sent."""
    if not added:
        yield folder
        return
    kept = {name: folder / name for name in examine(folder).names if Path(name).name not in IGNORE_FILES}
    with tempfile.TemporaryDirectory(prefix="mulosd-upload-") as copy:
        for name, file in {**kept, **added}.items():
            (Path(copy) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, Path(copy) / name)
        yield Path(copy)


def free_name(name: str, taken: Collection[str]) -> str:
    """`name` in a folder of its own, whatever is `taken`."""
    return next(free for free in (f"{'_' * num}{name}" for num in itertools.count()) if free not in taken)


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
