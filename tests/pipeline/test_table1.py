"""The rows of Table 1 whose methods and evaluators exist, each by its command, on fabricated checkpoints."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from pipelines.cli.main import cli
from tests import fabricated
from tests.table1 import RUNNABLE
from tests.unit.text import folders

CODES = 128  # the files pool 100 of them


@pytest.fixture(autouse=True)
def toy_prompts() -> None:
    """In place of the folder's fixture of this name: the files' own prompts are read."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder with both families, converted from files in their published forms."""
    root = tmp_path_factory.mktemp("table1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULOSD_WEIGHTS", "")
        llamagen, tar = _llamagen(), _tar()
        for part in ("vq", "model-8", "model-16"):
            torch.save({"model": fabricated.state(part, data=llamagen)}, root / f"{part}.pt")
            _convert(root, llamagen, part, root / f"{part}.pt")
        _convert(root, llamagen, "t5", folders.t5_folder(root / "flan-t5"))
        for part in ("vq", "model-8", "model-16", "model-32", "ta-tok"):
            tensors = fabricated.state(part, data=tar)
            with fabricated.easydict():
                args = fabricated.EasyDict({"model_type": "clip_cond"})
                torch.save({"model": {"name": "lp", "args": args, "sd": tensors}}, root / f"{part}.pth")
            _convert(root, tar, part, root / f"{part}.pth")
        _convert(root, tar, "llm", folders.llm_folder(root / "tar-llm"))
    return root / "weights"


@pytest.mark.parametrize(("name", "target"), RUNNABLE.items())
def test_each_row_runs_by_one_command(name: str, target: str, weights: Path, tmp_path: Path) -> None:
    """One image each, so that no Fréchet distance exists whatever the reference."""
    here = [f"target={target}", "device=cpu", "dtype=float32", "images_per_prompt=1"]
    settings = [word for setting in here for word in ("--set", setting)]
    command = ["run", name, "--limit", "1", "--out", str(tmp_path), "--no-track", "--quiet", *settings]
    zipar = _mulosd(weights, *command, "--set", "only=zipar")
    assert _methods(zipar) == ["ar", "draft-only", "zipar"]
    mulosd = _mulosd(weights, *command, "--set", "only=mulosd")
    assert _methods(mulosd) == ["ar", "draft-only", *["mulosd"] * 6]
    assert "8 images, 2 cached, decoded 6, 0 failed" in mulosd  # the rows share their controls
    for row in _rows(zipar) + _rows(mulosd):
        assert row["n"] == "1"
        assert float(row["forwards"]) > 0
        assert not row["fd_effnet"]
        assert "FD-EffNet: these prompts have no reference images" in row["notes"]


def _methods(output: str) -> list[str]:
    return [row["method"].split()[0] for row in _rows(output)]


def _rows(output: str) -> list[dict[str, str]]:
    """The table that a run has written, as its CSV form has it."""
    path = next(line.removeprefix("table: ") for line in output.splitlines() if line.startswith("table: "))
    return list(csv.DictReader(Path(path).with_suffix(".csv").read_text(encoding="utf-8").splitlines()))


def _llamagen() -> dict[str, Any]:
    data = _with_codes(fabricated.family())
    data["parts"]["t5"] = {"architecture": "t5", "config": {"d_model": 16}}
    for entry in data["targets"].values():
        entry["encoders"] = ["t5"]
    return data


def _tar() -> dict[str, Any]:
    data = _with_codes(fabricated.tar_family())
    parts, targets = data["parts"], data["targets"]
    parts["model-32"] = {"architecture": "ar-dtok", "config": {**parts["model-8"]["config"], "grid": 16}}
    parts["llm"]["config"]["hidden_size"] = 16
    targets["toytar-32"] = {**targets["toytar-16"], "model": "model-32", "image_px": 32}
    return data


def _with_codes(data: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(data))
    for part in copy["parts"].values():
        if "vocab_size" in part["config"]:
            part["config"]["vocab_size"] = CODES
    copy["parts"]["vq"]["config"]["codebook_size"] = CODES
    return copy


def _convert(root: Path, data: dict[str, Any], part: str, source: Path) -> None:
    family = fabricated.write_family(root, data)
    _mulosd(root / "weights", "convert", str(source), "--family", str(family), "--part", part)


def _mulosd(weights: Path, *args: str) -> str:
    done = CliRunner().invoke(cli, ["--weights", str(weights), *args])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output
