"""A migrated tracking database and a server that is down."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.tracking.sqlite_file import is_half_made, prepare


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database: making one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    prepare(path, path.parent / "mlartifacts")
    assert [file.name for file in path.parent.iterdir()] == ["mlflow.db"]
    assert not is_half_made(path)
    return path


@pytest.fixture
def store(tmp_path: Path, template: Path) -> Path:
    """A store folder with an empty tracking database."""
    folder = tmp_path / "store"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    return folder


@pytest.fixture
def dead_uri() -> Iterator[str]:
    """A server that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"
