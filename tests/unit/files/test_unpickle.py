"""Files of torch.save without running them: what is let through, what is refused, what is broken."""

import os
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mulosd.errors import DataError
from mulosd.files.unpickle import plain, unpickle
from tests.fabricated import EasyDict, easydict


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.mark}",))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "payload-ran"


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_payload_is_refused_and_does_not_run(tmp_path: Path, mark: Path, zipped: bool) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"model": {"w": torch.ones(2)}, "x": Payload(mark)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"evil\.pt: refused, nothing in it was run: it names \w+\.system"):
        unpickle(path)
    assert not mark.exists()


def test_a_bare_pickle_is_refused_and_does_not_run(tmp_path: Path, mark: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Payload(mark), protocol=2))
    with pytest.raises(DataError, match="refused"):
        unpickle(path)
    assert not mark.exists()


def test_the_payload_is_a_real_one(mark: Path) -> None:
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()


def test_arguments_of_a_training_run(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": torch.ones(2)}, "args": Namespace(image_size=512, betas=(0.9, 0.95))}, path)
    assert plain(unpickle(path)["args"]) == {"image_size": 512, "betas": [0.9, 0.95]}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_an_easydict_becomes_a_plain_mapping_without_the_package(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "a.pth"
    args = EasyDict({"max_seq_len": 256, "bottleneck": {"top_k": 4, "scales": [1, 2, 3]}, "path": None})
    with easydict():
        torch.save({"model": {"args": args, "sd": {}}}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModuleNotFoundError):
        import easydict as _  # type: ignore[import-not-found]  # noqa: F401
    found = unpickle(path)["model"]["args"]
    assert plain(found) == {"max_seq_len": 256, "bottleneck": {"top_k": 4, "scales": [1, 2, 3]}, "path": None}


def test_another_class_of_that_package_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(b"\x80\x02ceasydict\nOther\n)R.")
    with pytest.raises(DataError, match=r"refused.*easydict\.Other"):
        unpickle(path)


def test_the_list_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(Namespace(a=1), path)
    before = set(torch.serialization.get_safe_globals())  # torch keeps a set; its list has another order each time
    assert unpickle(path).a == 1
    assert set(torch.serialization.get_safe_globals()) == before
    assert Namespace not in before


class ObjectType:
    """numpy's object type with the flags cleared that say its elements are references."""

    def __reduce__(self) -> Any:
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0)


class Pointers:
    """An array of that type, its elements made from raw bytes: printing it crashes the process."""

    def __reduce__(self) -> Any:
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), ObjectType(), False, b"A" * 8)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("opened", [False, True], ids=["", "others-allow-numpy"])
def test_an_array_of_made_up_pointers_is_refused(tmp_path: Path, zipped: bool, opened: bool) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"model": Pointers()}, path, _use_new_zipfile_serialization=zipped)
    parts = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.ObjectDType]
    with (
        torch.serialization.safe_globals(parts if opened else []),
        pytest.raises(DataError, match="refused, nothing in it was run: it names numpy"),
    ):
        unpickle(path)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_download_that_was_cut_off_is_not_a_whole_file(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "whole.pt"
    torch.save({"model": {f"w{i}": torch.ones(40, 7) for i in range(4)}}, path, _use_new_zipfile_serialization=zipped)
    data, cut = path.read_bytes(), tmp_path / "cut.pt"
    assert unpickle(path)["model"]["w3"].sum() == 280
    sizes = [*range(8), *range(8, len(data), 53), *range(len(data) - 30, len(data))]
    for size in sizes:
        cut.write_bytes(data[:size])
        with pytest.raises(DataError, match=rf"cut\.pt: not a whole torch file \({size:,} bytes, "):
            unpickle(cut)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        unpickle(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut off"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.pt: not a whole torch file"):
        unpickle(path)
    with pytest.raises(DataError, match="there is no such file"):
        unpickle(tmp_path / "b.pt")
