"""Checkpoint files that are cut off, damaged or name what is not there."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from mulosd.convert.source import read_source
from mulosd.errors import DataError
from mulosd.families.weight_files import tensors_of
from tests import fabricated


def test_a_folder_lacks_a_shard(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    for index, words in (
        ("{}", "not an index"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "which .* does not hold"),
        ('{"weight_map": {"a": ""}}', "names '', which"),
        ('{"weight_map": {"a": "."}}', r"names '\.', which"),
        ('{"weight_map": {"a": "x\\u0000y"}}', r"names 'x\\x00y', which"),
        ('{"weight_map": {"a": "' + "x" * 300 + '"}}', "names 'xxx"),
        ('{"weight_map": {"a": 3, "b": null, "c": ["d"]}}', r"names 3, None, \['d'\], which"),
        ('{"weight_map": {}}', "names no file"),
        ('{"weight_map": "x"}', "not an index"),
        ("[" * 1000, "not an index .*nested"),
    ):
        (folder / "model.safetensors.index.json").write_text(index)
        with pytest.raises(DataError, match=words):
            read_source(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(DataError, match="0 safetensors files and no"):
        read_source(folder)


@pytest.mark.parametrize("size", [0, 5, 9, 60, -1])
def test_a_safetensors_file_that_was_cut_off_says_its_size(tmp_path: Path, size: int) -> None:
    save_file(fabricated.state("vq"), tmp_path / "vq.safetensors")
    data = (tmp_path / "vq.safetensors").read_bytes()[:size]
    (tmp_path / "vq.safetensors").write_bytes(data)
    with pytest.raises(DataError, match=rf"not a whole safetensors file \({len(data):,} bytes, "):
        read_source(tmp_path / "vq.safetensors")
    with pytest.raises(DataError, match="not a whole safetensors file"):
        tensors_of(tmp_path / "vq.safetensors")


@pytest.mark.parametrize("header", ["[]", '{"a": 3}', '{"a": {"dtype": "F32", "shape": 3}}', "[" * 3000])
def test_a_header_of_another_form_is_one_sentence(tmp_path: Path, header: str) -> None:
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"0000")
    with pytest.raises(DataError, match="not a whole safetensors file"):
        tensors_of(tmp_path / "a")
