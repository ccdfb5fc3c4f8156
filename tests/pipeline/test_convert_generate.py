"""From published files to images with the commands a user types: convert, plan, doctor, generate."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from mulosd.models.condition import Condition
from mulosd.targets import load_target
from mulosd.text.encoder import Encoded
from pipelines.cli.main import cli
from tests import fabricated

PARTS = {"vq": "vq.pt", "model-8": "stage1.pt", "model-16": "stage2.pt"}


class Features:
    """Left-padded caption features that depend on the prompt, where a text encoder would stand."""

    def __init__(self, dtype: str) -> None:
        self.dtype = getattr(torch, dtype)

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        width, length = 16, 6
        values, masks = torch.zeros(len(prompts), length, width), torch.zeros(len(prompts), length, dtype=torch.bool)
        for b, prompt in enumerate(prompts):
            valid = min(len(prompt.split()), length)
            generator = torch.Generator().manual_seed(sum(map(ord, prompt)))
            values[b, length - valid :] = torch.randn(valid, width, generator=generator)
            masks[b, length - valid :] = True
        return Encoded(Condition(values.to(self.dtype), masks), (0,) * len(prompts))

    def features(self, staged: Condition) -> Condition:
        return staged


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights folder with the converted family, made by the command itself."""
    root = tmp_path_factory.mktemp("released")
    family = str(fabricated.write_family(root, fabricated.family()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULOSD_WEIGHTS", "")  # --weights sets it; this puts it back
        for seed, (part, name) in enumerate(PARTS.items()):
            wrapper = {"model": {f"module.{k}": v for k, v in fabricated.state(part, seed).items()}, "steps": 3}
            torch.save(wrapper, root / name)
            done = mulosd(root / "weights", "convert", str(root / name), "--family", family, "--part", part)
            assert done.exit_code == 0, done.output
            assert "float32 values, in the card" in done.output
    return root / "weights"


@pytest.fixture(autouse=True)
def _encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulosd.targets.target.build_encoder", lambda card, *, device, dtype: Features(dtype))
    monkeypatch.setenv("MULOSD_WEIGHTS", "")


def mulosd(folder: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["--weights", str(folder), *args], catch_exceptions=True)


def generate(weights: Path, out: Path, method: str, *more: str, target: str = "toygen-16") -> np.ndarray:
    words = ["--target", target, "--prompt", "a red cat", "--method", method, "--out", str(out), *more]
    done = mulosd(weights, "generate", *words)
    assert done.exit_code == 0, done.output
    return np.asarray(Image.open(out))


def test_ar_and_mulosd_draw_images(weights: Path, tmp_path: Path) -> None:
    ar = generate(weights, tmp_path / "ar.png", "ar")
    assert ar.shape == (16, 16, 3)
    # nothing drafted is accepted: MuLo-SD in its serial form is the target's own image
    none = ["--set", "tau=2", "--set", "resample=serial"]
    assert np.array_equal(generate(weights, tmp_path / "none.png", "mulosd", *none), ar)
    some = generate(weights, tmp_path / "some.png", "mulosd", "--set", "tau=0.05")
    assert not np.array_equal(some, ar)
    draft = generate(weights, tmp_path / "draft.png", "draft-only")
    every = generate(weights, tmp_path / "all.png", "mulosd", "--set", "tau=0")
    assert np.array_equal(every, draft)


def test_both_resolutions_see_the_same_prompt(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULOSD_WEIGHTS", str(weights))
    target = load_target("toygen-16", dtype="float64")
    assert target.drafter is not None
    assert (target.model.config.grid, target.drafter.config.grid) == (8, 4)
    expected = fabricated.state("model-8", 1)["output.weight"]
    assert torch.equal(target.drafter.output.weight, expected.double())


def test_tars_layout_decodes_too(tmp_path: Path) -> None:
    data = fabricated.tar_family()
    for entry in data["targets"].values():
        del entry["encoders"]  # features stand in for the LLM and TA-Tok
    family = str(fabricated.write_family(tmp_path, data))
    for seed, part in enumerate(["vq", "model-8", "model-16"]):
        tensors = fabricated.state(part, seed, data=data)
        args = fabricated.EasyDict({"model_type": "clip_cond", "max_seq_len": 16 if part == "model-8" else 64})
        with fabricated.easydict():
            content = tensors if part == "vq" else {"name": "lp", "args": args, "sd": tensors}
            torch.save({"model": content}, tmp_path / f"{part}.pth")
        done = mulosd(tmp_path, "convert", str(tmp_path / f"{part}.pth"), "--family", family, "--part", part)
        assert done.exit_code == 0, done.output
    ar = generate(tmp_path, tmp_path / "ar.png", "ar", target="toytar-16")
    none = ["--set", "tau=2", "--set", "resample=serial"]
    assert np.array_equal(generate(tmp_path, tmp_path / "none.png", "mulosd", *none, target="toytar-16"), ar)


def test_doctor_decodes_a_token(weights: Path) -> None:
    done = mulosd(weights, "doctor", "toygen-16", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    for text in (
        "8×8 tokens, 16 px, 48 codes",
        "hash and shapes as in card.json",
        "model-16 cache",
        "GiB free",
        "on cpu in bfloat16",
    ):
        assert text in done.output


def test_doctor_loads_nothing_that_does_not_fit(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.doctor._free", lambda device: ("a small machine", 2**16))
    done = mulosd(weights, "doctor", "toygen-16")
    assert "!!  cpu              a small machine, 0.0 GiB free, 0.0 GiB needed; free some or use a" in done.output
    assert "one token" not in done.output
    assert done.exit_code != 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_doctor_misses_a_device(weights: Path) -> None:
    done = mulosd(weights, "doctor", "toygen-16", "--device", "cuda")
    assert "!!  cuda             torch sees no CUDA device; use --device cpu" in done.output
    assert "one token" not in done.output


def test_doctor_finds_what_is_wrong(weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toygen"
    folder.mkdir()
    for path in (weights / "toygen").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    card = json.loads((folder / "card.json").read_text())
    good = json.dumps(card)
    card["parts"]["model-8"]["config"]["dim"] = 64
    (folder / "card.json").write_text(json.dumps(card))
    done = mulosd(tmp_path, "doctor", "toygen-16")
    assert "wrongly shaped tensors" in done.output
    assert done.exit_code != 0
    (folder / "card.json").write_text(good)
    (folder / "vq.safetensors").write_bytes(b"x" * 10)
    done = mulosd(tmp_path, "doctor", "toygen-16")
    assert "sha256 is" in done.output
    assert "one token" not in done.output


def test_targets_without_weights_say_how_to_get_them(tmp_path: Path) -> None:
    for target in ("llamagen-xl-512", "llamagen-xl-256", "tar-1.5b-512", "tar-7b-1024"):
        done = mulosd(tmp_path, "generate", "--target", target, "--method", "ar", "--prompt", "x", "--out", "x.png")
        family = target.rpartition("-")[0]
        for text in (str(tmp_path / family), f"mulosd fetch {family}", f"mulosd convert FILE --family {family} --part"):
            assert text in str(done.exception)
        assert "!!  files" in mulosd(tmp_path, "doctor", target).output


def test_plan_prints_memory_before_anything_is_loaded(weights: Path, tmp_path: Path) -> None:
    smoke = ["plan", "smoke", "--set", "batch_size=4"]
    here = mulosd(weights, *smoke, "--set", "target=toygen-16")
    assert here.exit_code == 0, here.output
    assert "memory of toygen-16: " in here.output
    assert "!!" not in here.output
    absent = mulosd(tmp_path, *smoke, "--set", "target=llamagen-xl-512")
    assert absent.exit_code == 0, absent.output
    assert "model-512 2.90 GiB" in absent.output
    assert "!! llamagen-xl-512 needs parts" in absent.output
