"""Folders that a command is about to write into, checked before any work. Standard library only."""

import tempfile
from pathlib import Path

from mulosd.errors import EnvironmentProblem


def prepare_folder(folder: Path, option: str = "--out") -> None:
    """Make the folder; EnvironmentProblem naming the option where no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"{option} {folder} cannot be written ({error.strerror or error}); choose a writable folder."
        ) from error
