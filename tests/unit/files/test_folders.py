"""Output folders are tried before work begins."""

from pathlib import Path

import pytest

from mulosd.errors import EnvironmentProblem
from mulosd.files.folders import prepare_folder
from mulosd.training import tiny


def test_a_folder_is_made(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("name", ["file/x", "file", "x" * 300])
def test_one_that_cannot_be_names_the_option(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(EnvironmentProblem, match=r"--out .* cannot be written"):
        prepare_folder(tmp_path / name)
    with pytest.raises(EnvironmentProblem, match=r"--out .* cannot be written"):
        tiny.main(tmp_path / name)
