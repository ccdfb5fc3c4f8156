"""Files that knobs name: pinned to their content, refused when it is another one."""

import hashlib
from pathlib import Path

import pytest

from mulosd.errors import DataError
from mulosd.files.pin import checked_file, content_of, label_of, pin_file, short_name


def test_a_pinned_name_is_absolute_and_holds_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.pth").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    digest = hashlib.sha256(b"weights").hexdigest()
    pinned = pin_file("net.pth")
    assert pinned == f"{tmp_path}/net.pth#sha256:{digest}"
    assert pin_file(pinned) == pinned
    assert checked_file(pinned) == tmp_path / "net.pth"
    assert content_of(pinned) == f"sha256:{digest}"


def test_changed_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    path.write_bytes(b"weights")
    pinned = pin_file(str(path))
    path.write_bytes(b"other weights")
    for read in (checked_file, pin_file):
        with pytest.raises(DataError, match=r"net\.pth: sha256 is .* expected .*; restore the file"):
            read(pinned)
    assert pin_file(str(path)) != pinned


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.pth: there is no such file"):
        pin_file(str(tmp_path / "absent.pth"))


def test_only_pinned_names_have_a_content() -> None:
    with pytest.raises(ValueError, match="is not pinned"):
        content_of("/somewhere/net.pth")


def test_labels_show_the_file_and_the_first_digits_of_its_content() -> None:
    digest = "3f2a91c4" + "0" * 56
    assert short_name(f"/models/the $2 net#1.pth#sha256:{digest}") == "the $2 net#1.pth@3f2a91c4"
    assert short_name(f"sha256:{digest}") == "sha256:3f2a91c4"
    assert [short_name(value) for value in (0.1, "sr", "/models/net.pth", None)] == [0.1, "sr", "/models/net.pth", None]


def test_a_label_names_a_file_in_short() -> None:
    knobs = {"sr_model": f"/far/away/net.pth#sha256:{'0' * 64}", "tau": 0.2}
    assert label_of("tiny-mid", "mulosd", knobs=knobs.items()) == "tiny-mid mulosd sr_model=net.pth@00000000 tau=0.2"
    assert label_of("ar", knobs=()) == "ar"
