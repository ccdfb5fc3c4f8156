"""Folders of users with a home, with another cache folder, and of users without a home."""

import os
from pathlib import Path

import pytest
import torch

from mulosd.decoding import neighbours
from mulosd.errors import ConfigError, DataError
from mulosd.families.card import load_card, weights_folder
from mulosd.files.home import HOMELESS, cache_home, home
from mulosd.prompts import load_prompts
from pipelines.cli.main import main


@pytest.fixture
def _homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A numeric user of a container: no HOME, and no entry in the list of users."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "MULOSD_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


def test_the_cache_is_below_home_or_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert (home(), cache_home()) == (tmp_path, tmp_path / ".cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_home() == tmp_path / "cache"


@pytest.mark.usefixtures("_homeless")
def test_without_a_home_shipped_targets_are_found_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert "HOME" not in os.environ
    assert weights_folder() == HOMELESS / ".cache" / "mulosd"
    assert load_card("tiny-mid").grid == 16
    monkeypatch.setattr(neighbours, "SMALL", 4)
    monkeypatch.setattr("pathlib.Path.mkdir", _refuse)  # a superuser could make it
    assert neighbours.neighbour_table(torch.randn(8, 4), 2).shape == (8, 8)
    assert "the neighbour table is not kept" in caplog.text


@pytest.mark.usefixtures("_homeless")
def test_commands_give_libraries_a_home(capsys: pytest.CaptureFixture[str]) -> None:
    """MLflow ends in a traceback without one."""
    with pytest.raises(SystemExit) as done:
        main(["plan", "smoke"])
    assert (done.value.code, os.environ["HOME"]) == (0, str(HOMELESS))


@pytest.mark.usefixtures("_homeless")
@pytest.mark.parametrize("path", ["~/texts", "~no-such-user/texts"])
def test_a_home_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises((ConfigError, DataError), match=path):
        load_prompts({"name": "dpg", "path": path})


def _refuse(self: Path, *_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", str(self))
