"""Whether a file can be written is known before the work, and asking leaves nothing."""

import hashlib
import os
from pathlib import Path

import pytest

from mulosd.files.publish import file_sha256, problem_of_writing


def test_a_folder_that_is_not_made_yet_is_asked_by_its_nearest_parent(tmp_path: Path) -> None:
    assert problem_of_writing(tmp_path / "not" / "yet") == ""
    assert list(tmp_path.iterdir()) == []


def test_the_reason_is_the_systems(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert problem_of_writing(tmp_path / "file" / "below") == os.strerror(20)  # not a directory
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert problem_of_writing(tmp_path) == os.strerror(13)


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"abc" * 100_000)
    assert file_sha256(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "none")
