"""Conversion leaves the families that are there alone: shipped ones, and converted ones of the same name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mulosd.convert.part import convert
from mulosd.errors import DataError, EnvironmentProblem
from mulosd.families.card import family_folder, load_card
from tests import fabricated


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path / "weights"))
    torch.save({"model": fabricated.state("vq")}, tmp_path / "vq.pt")
    return tmp_path / "vq.pt"


def written(folder: Path, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    return str(fabricated.write_family(folder, {**fabricated.family(), **changes}))


def other_config() -> dict[str, Any]:
    parts = fabricated.family()["parts"]
    return {**parts, "model-8": {**parts["model-8"], "config": {**parts["model-8"]["config"], "n_layers": 3}}}


CHANGES: dict[str, dict[str, Any]] = {
    "targets.toygen-8": {"targets": {}},
    "parts.model-8": {"parts": other_config()},
}


@pytest.mark.parametrize("differs", CHANGES)
def test_another_family_of_that_name_is_not_overwritten(source: Path, tmp_path: Path, differs: str) -> None:
    convert(source, family=written(tmp_path / "a"), part="vq")
    before = {path: path.read_bytes() for path in (tmp_path / "weights").rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=rf"card of another family \({differs} differs\), which is not overwritten"):
        convert(source, family=written(tmp_path / "b", **CHANGES[differs]), part="vq")
    assert {path: path.read_bytes() for path in (tmp_path / "weights").rglob("*") if path.is_file()} == before


def test_an_out_folder_of_another_family_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    convert(source, family=written(tmp_path / "a"), part="vq", out=tmp_path / "out")
    with pytest.raises(DataError, match=r"another family \(family differs\)"):
        convert(source, family=written(tmp_path / "b", family="toygen2", targets={}), part="vq", out=tmp_path / "out")


def test_a_family_may_grow(source: Path, tmp_path: Path) -> None:
    data = fabricated.family()
    convert(source, family=written(tmp_path / "a", targets={"toygen-8": data["targets"]["toygen-8"]}), part="vq")
    convert(source, family=written(tmp_path / "b"), part="vq")
    assert len(load_card("toygen-16").missing) == 2


def test_nothing_is_converted_into_the_program(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, shipped = written(tmp_path / "a"), family_folder("tiny")
    before = {path.name: path.stat().st_mtime_ns for path in shipped.rglob("*")}
    (tmp_path / "link").symlink_to(shipped)
    for out in (shipped, shipped / "new", tmp_path / "link", tmp_path / "link" / ".." / "new"):
        with pytest.raises(EnvironmentProblem, match="inside the installed program"):
            convert(source, family=family, part="vq", out=out)
    monkeypatch.setenv("MULOSD_WEIGHTS", str(shipped.parent))
    with pytest.raises(EnvironmentProblem, match="inside the installed program"):
        convert(source, family=family, part="vq")
    assert {path.name: path.stat().st_mtime_ns for path in shipped.rglob("*")} == before
    assert json.loads((shipped / "card.json").read_text(encoding="utf-8"))["family"] == "tiny"
