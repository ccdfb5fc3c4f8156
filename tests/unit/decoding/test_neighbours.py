"""One neighbour table per codebook: prefixes, compact ids, and a cache file that is trusted only when intact."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mulosd.decoding import neighbours, verify
from mulosd.decoding.neighbours import NeighbourTable, neighbour_table
from tests.unit.decoding.test_verify import random_codebook

CODES = 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test, and codebooks of 64 codes that are worth a file; tables are 16 wide."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(neighbours, "SMALL", CODES)
    monkeypatch.setattr(neighbours, "WIDTH", 16)
    return tmp_path / "mulosd"


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths that were computed."""
    widths: list[int] = []

    def counting(codebook: Tensor, pool_k: int) -> Tensor:
        widths.append(pool_k)
        return verify.nearest_codes(codebook, pool_k)

    monkeypatch.setattr(neighbours, "nearest_codes", counting)
    return widths


def test_pools_are_prefixes_of_one_table(sorts: list[int]) -> None:
    codebook = random_codebook(0, CODES)
    table = NeighbourTable(codebook)
    for pool_k in (4, 1, 16):
        assert torch.equal(table(pool_k).long(), verify.nearest_codes(codebook, pool_k))
    assert sorts == [16]
    assert torch.equal(table(40).long(), verify.nearest_codes(codebook, 40))
    assert sorts == [16, 40]


def test_the_file_serves_the_next_process_and_grows(folder: Path, sorts: list[int]) -> None:
    codebook = random_codebook(0, CODES)
    first = neighbour_table(codebook, 3)
    assert torch.equal(neighbour_table(codebook, 16), first)
    assert sorts == [16]
    neighbour_table(codebook, 20)
    assert neighbour_table(codebook, 3).shape == (CODES, 20)
    assert sorts == [16, 20]
    assert len(list(folder.iterdir())) == 1, "a wider table takes the place of the narrower one"


def test_each_codebook_has_its_own_file(folder: Path, sorts: list[int]) -> None:
    a, b = random_codebook(0, CODES), random_codebook(1, CODES)
    assert not torch.equal(neighbour_table(a, 8), neighbour_table(b, 8))
    neighbour_table(a.double(), 8)
    assert len(list(folder.iterdir())) == len(sorts) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "other"])
def test_a_damaged_file_is_said_and_replaced(
    damage: str, folder: Path, sorts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    codebook = random_codebook(0, CODES)
    table = neighbour_table(codebook, 8)
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    if damage == "other":
        neighbour_table(random_codebook(1, 2 * CODES), 8)  # 128 codes
        (other,) = set(folder.iterdir()) - {path}
        other.replace(path)
    else:
        path.write_bytes({"cut": bytes(data[:-9]), "flipped": bytes(data), "foreign": b"no tensors"}[damage])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(neighbour_table(codebook, 8), table)
    assert "computed again" in caplog.text
    assert str(path) in caplog.text
    before = len(sorts)
    caplog.clear()
    assert torch.equal(neighbour_table(codebook, 8), table)
    assert (len(sorts), caplog.text) == (before, "")


def test_a_folder_that_cannot_be_written_is_said_and_does_not_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mulosd").write_text("a file where the folder belongs")
    codebook = random_codebook(0, CODES)
    assert torch.equal(neighbour_table(codebook, 4)[:, :4].long(), verify.nearest_codes(codebook, 4))
    assert "is not kept" in caplog.text


def test_a_small_codebook_leaves_no_file(folder: Path) -> None:
    table = neighbour_table(random_codebook(0, CODES - 1), 4)
    assert table.shape == (CODES - 1, CODES - 1)
    assert not folder.exists()


@pytest.mark.parametrize(("codes", "dtype"), [(40, torch.int16), (1 << 15, torch.int16), ((1 << 15) + 1, torch.int32)])
def test_ids_are_as_narrow_as_they_can_be(codes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "nearest_codes", lambda codebook, k: torch.arange(len(codebook))[:, None])
    table = neighbour_table(torch.zeros(codes, 1), 1)
    assert table.dtype == dtype
    assert torch.equal(table[:, 0].long(), torch.arange(codes))
