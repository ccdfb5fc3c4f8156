"""The released families by their own names: shipped data files, published file names and wrappers, toy sizes.

Only widths, depths and vocabularies are shrunk; targets, parts, grids, presets and encoders are those that ship.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from mulosd.families import card as families
from pipelines.cli.main import cli
from tests import fabricated
from tests.unit.text import folders

SMALL = {"dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 48, "ffn_dim": 32}
CONFIGS: dict[str, dict[str, Any]] = {  # architecture -> what of its configuration is smaller here
    "vq": fabricated.VQ,
    "llamagen-t2i": {**SMALL, "caption_dim": 16},
    "ar-dtok": {**SMALL, "cond_dim": 8, "prefix_len": 9},
    "ta-tok": folders.TA_TOK,
}
ENCODERS = {"t5": ({"d_model": 16}, folders.t5_folder), "tar-llm": ({"hidden_size": 16}, folders.llm_folder)}
TARGETS = {"llamagen-xl": ("256", "512"), "tar-1.5b": ("256", "512", "1024"), "tar-7b": ("256", "512", "1024")}


@pytest.fixture(autouse=True)
def toy_prompts() -> None:
    """In place of the folder's fixture of this name: prompts are given on the command line."""


@pytest.fixture(params=["llamagen-xl", "tar-7b"])
def family(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A released family of toy size, converted from its published files by the commands that the page prints."""
    name: str = request.param
    shipped = families._assets()
    (tmp_path / "assets" / "families").mkdir(parents=True)
    (tmp_path / "assets" / "tiny").symlink_to(shipped / "tiny")
    data = shrunk(json.loads((shipped / "families" / f"{name}.json").read_text()))
    (tmp_path / "assets" / "families" / f"{name}.json").write_text(json.dumps(data))
    monkeypatch.setattr(families, "_assets", lambda: tmp_path / "assets")
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path / "weights"))
    for seed, part in enumerate(data["parts"]):
        mulosd("convert", str(published(tmp_path, data, part, seed)), "--family", name, "--part", part)
    return name


def shrunk(data: dict[str, Any]) -> dict[str, Any]:
    for entry in data["parts"].values():
        architecture = entry["architecture"]
        entry["config"] = (
            ENCODERS[architecture][0] if architecture in ENCODERS else entry["config"] | CONFIGS[architecture]
        )
    for target in data["targets"].values():
        target["image_px"] = 2 * data["parts"][target["model"]]["config"]["grid"]
    return data


def published(root: Path, data: dict[str, Any], part: str, seed: int) -> Path:
    """The file or folder of a part as it is published."""
    entry = data["parts"][part]
    if entry["architecture"] in ENCODERS:
        return ENCODERS[entry["architecture"]][1](root / entry["source"]["repo"].rpartition("/")[2])
    path, tensors = root / entry["source"]["file"], fabricated.state(part, seed, data=data)
    if path.suffix == ".pt":
        torch.save({"model": tensors}, path)
        return path
    num_tokens = entry["config"].get("grid", 0) ** 2
    with fabricated.easydict():
        args = fabricated.EasyDict({"model_type": "clip_cond", "max_seq_len": num_tokens} if num_tokens else {})
        torch.save({"model": {"name": "lp", "args": args, "sd": tensors}}, path)
    return path


def mulosd(*args: str) -> str:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def generate(target: str, method: str, out: Path, *more: str) -> np.ndarray:
    mulosd("generate", "--target", target, "--method", method, "--prompt", "a red circle", "--out", str(out), *more)
    return np.asarray(Image.open(out))


def test_files_become_images_under_the_released_names(family: str, tmp_path: Path) -> None:
    for px in TARGETS[family]:
        report = mulosd("doctor", f"{family}-{px}")
        assert "one token" in report
        assert f"{int(px) // 16}×{int(px) // 16} tokens" in report
    assert generate(f"{family}-256", "ar", tmp_path / "ar.png").shape == (32, 32, 3)
    some = generate(f"{family}-512", "mulosd", tmp_path / "some.png", "--set", "tau=0.05")
    draft = generate(f"{family}-512", "draft-only", tmp_path / "draft.png")
    every = generate(f"{family}-512", "mulosd", tmp_path / "all.png", "--set", "tau=0")
    assert some.shape == (64, 64, 3)
    assert np.array_equal(every, draft)
    assert not np.array_equal(some, draft)


def test_no_released_target_is_left_out() -> None:
    shipped = {name: json.loads(path.read_text()) for name, path in families.released_families().items()}
    assert {f"{name}-{px}" for name, sizes in TARGETS.items() for px in sizes} == {
        target for name, data in shipped.items() if name != "llamagen-c2i" for target in data["targets"]
    }
    one, other = (shipped[name] for name in ("tar-1.5b", "tar-7b"))  # they differ in the LLM alone
    for data in (one, other):
        data["parts"].pop("llm")
    assert one["parts"] == other["parts"]
    assert [*one["targets"].values()] == [*other["targets"].values()]
