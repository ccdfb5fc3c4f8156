"""Files of a user: regular ones are read, nothing is waited for, and JSON is strict."""

import os
from pathlib import Path

import pytest

from mulosd.files.reading import is_file, parse_json, read_file, reason_of


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0" * 70_000)
    assert read_file(tmp_path / "a") == b"\0" * 70_000
    assert is_file(tmp_path / "a")


def test_what_is_not_a_file_has_a_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reasons = {
        tmp_path / "pipe": "a pipe or a device; save its content as a file",
        Path("/dev/zero"): "a pipe or a device; save its content as a file",
        tmp_path: "Is a directory",
        tmp_path / "none": "No such file or directory",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / "a\0b": "no file can have this name",
        tmp_path / "\ud800": "no file can have this name",
    }
    for path, reason in reasons.items():
        with pytest.raises(OSError, match=r".") as caught:
            read_file(path)
        assert reason_of(caught.value) == reason
        assert not is_file(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 1000, "nested more than 64 levels deep"),
        ("[" * 100_000, "nested more than 64 levels deep"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested more than 64 levels deep"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("[", "line 1 column"),
        ("9" * 5000, "4300 digits"),
    ],
    ids=["open", "very-deep", "objects", "nan", "infinity", "cut", "digits"],
)
def test_json_that_is_refused(text: str, reason: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=reason):
            parse_json(form)


def test_json_that_is_read() -> None:
    deep = "[" * 60 + "]" * 60
    assert str(parse_json(f'{{"a": {deep}, "b": [1, 2.5, null, true]}}')["a"]) == deep
