"""Folders that a command is about to write into, checked before any work. Standard library only."""

import tempfile
from pathlib import Path

from mulosd.errors import EnvironmentProblem

INSTALLED = Path(__file__).resolve().parents[2]
PACKAGES = ("mulosd", "evaluators", "dashboards", "pipelines")


def prepare_folder(folder: Path, option: str = "--out") -> None:
    """Make the folder; EnvironmentProblem naming the option where no file can be written there."""
    refuse_package(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"{option} {folder} cannot be written ({error.strerror or error}); choose a writable folder."
        ) from error


def is_in_package(path: Path) -> bool:
    """Whether the path is inside the installed program, whose files no command changes."""
    return any(path.resolve().is_relative_to(INSTALLED / name) for name in PACKAGES)


def refuse_package(path: Path) -> None:
    """EnvironmentProblem for a path inside the installed program, which other users and other runs share."""
    if is_in_package(path):
        raise EnvironmentProblem(
            f"{path} is inside the installed program, which no command changes; choose another folder."
        )
