"""Output folders are tried before work begins."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mulosd.convert.fetch import fetch
from mulosd.decoding import neighbours
from mulosd.errors import EnvironmentProblem
from mulosd.files.folders import INSTALLED, prepare_folder
from mulosd.files.publish import publish_bytes
from mulosd.stage.export import check_export
from mulosd.training import tiny, upsampler
from pipelines.card.measure import Measurement
from pipelines.store.layout import Store


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


INSIDE = INSTALLED / "mulosd" / "assets" / "tiny"
WRITERS: dict[str, Callable[[Path], object]] = {
    "publish": lambda folder: publish_bytes(folder / "x", b""),
    "training": tiny.main,
    "published-family": lambda folder: tiny.publish(folder, folder),
    "quality": lambda folder: tiny.set_quality(folder, {}, {}),
    "upsampler": lambda folder: upsampler.main(folder, None, None),  # type: ignore[arg-type]
    "fetch": lambda folder: list(fetch("tar-7b", out=folder)),
    "store": Store.open,
    "export": lambda folder: check_export([], folder / "new"),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("inside", [INSIDE, INSIDE / ".." / "new"], ids=["shipped", "new"])
def test_no_writer_writes_into_the_installed_program(name: str, inside: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="inside the installed program"):
        WRITERS[name](inside)


def test_the_neighbour_table_is_not_kept_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(INSIDE))
    monkeypatch.setattr(neighbours, "SMALL", 0)
    assert neighbours.neighbour_table(torch.eye(8), 2).shape == (8, 8)
    assert "will be computed again" in caplog.text


def test_a_measurement_fills_a_copy_of_the_shipped_card(tmp_path: Path) -> None:
    assert Measurement(INSIDE, tmp_path).card_file == tmp_path / "card.json"
    assert Measurement(tmp_path / "own", tmp_path).card_file == tmp_path / "own" / "card.json"
