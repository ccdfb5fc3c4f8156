"""LlamaGen's class-to-image models, from published files to images by the commands that a user types."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from mulosd.errors import ConfigError
from mulosd.families.card import load_card, read_card, released_families
from mulosd.models.architectures import build_part
from pipelines.cli.main import cli
from tests import fabricated


@pytest.fixture(autouse=True)
def toy_prompts() -> None:
    """In place of the folder's fixture of this name: class prompts are read as they are."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted family; a DDP file with its training arguments, and a bare one as FSDP consolidates them."""
    root = tmp_path_factory.mktemp("classes")
    data = fabricated.class_family()
    family = fabricated.write_family(root, data)
    state = {part: fabricated.state(part, seed, data=data) for seed, part in enumerate(data["parts"])}
    args = fabricated.Namespace(image_size=64, downsample_size=16, cls_token_num=1, num_classes=10, vocab_size=48)
    torch.save({"model": state["vq"]}, root / "vq.pt")
    torch.save({"model": state["model-8"], "args": args, "steps": 3}, root / "model-8.pt")
    torch.save(state["model-16"], root / "model-16.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULOSD_WEIGHTS", "")
        for part in state:
            source = str(root / f"{part}.pt")
            done = mulosd(root / "weights", "convert", source, "--family", str(family), "--part", part)
            assert done.exit_code == 0, (done.output, done.exception)
    return root / "weights"


def mulosd(weights: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["--weights", str(weights), *args])


def generate(weights: Path, out: Path, method: str, *more: str, prompt: str = "class:3") -> np.ndarray:
    words = ["--target", "toyclass-16", "--prompt", prompt, "--method", method, "--out", str(out), *more]
    done = mulosd(weights, "generate", *words)
    assert done.exit_code == 0, (done.output, done.exception)
    return np.asarray(Image.open(out))


def test_methods_draw_a_class(weights: Path, tmp_path: Path) -> None:
    ar = generate(weights, tmp_path / "ar.png", "ar")
    assert ar.shape == (16, 16, 3)
    assert np.array_equal(generate(weights, tmp_path / "zipar.png", "zipar", "--set", "window=8"), ar)
    none = ["--set", "tau=2", "--set", "resample=serial"]
    assert np.array_equal(generate(weights, tmp_path / "none.png", "mulosd", *none), ar)
    assert not np.array_equal(generate(weights, tmp_path / "some.png", "mulosd", "--set", "tau=0.05"), ar)
    assert not np.array_equal(generate(weights, tmp_path / "other.png", "ar", prompt="class:4"), ar)


def test_a_sweep_over_classes(weights: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "classes.yaml"
    sweep.write_text(
        "{name: classes, target: toyclass-16, prompts: {name: classes, ids: [3, 9]}, images_per_prompt: 2,"
        " methods: [{method: ar}, {method: zipar}], evaluators: [speed]}"
    )
    command = ["run", str(sweep), "--out", str(tmp_path / "store"), "--no-track", "--quiet"]
    done = mulosd(weights, *command)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "8 images, 0 cached, decoded 8, 0 failed" in done.output
    assert not (tmp_path / "store" / "conditions").exists()  # a class is looked up, so there is nothing to stage


@pytest.mark.parametrize("prompt", ["a red cat", "class:10"])
def test_a_prompt_that_names_no_class_is_refused_before_weights_load(
    prompt: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.cli.single.load_target", None)
    words = ["--target", "toyclass-16", "--method", "ar", "--prompt", prompt, "--out", str(tmp_path / "x.png")]
    for done in (
        mulosd(weights, "generate", *words),
        mulosd(weights, "plan", "smoke", "--set", "target=toyclass-16"),
        mulosd(weights, "plan", "smoke", "--set", "target=toyclass-16", "--set", "prompts={name: classes, ids: [10]}"),
    ):
        assert isinstance(done.exception, ConfigError)
        assert "is not one of the model's 10 classes" in str(done.exception)


def test_doctor_tries_a_class(weights: Path) -> None:
    done = mulosd(weights, "doctor", "toyclass-16")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "one token" in done.output


def test_another_number_of_classes_is_refused(weights: Path, tmp_path: Path) -> None:
    data = fabricated.class_family()
    content = {"model": fabricated.state("model-8", data=data), "args": fabricated.Namespace(num_classes=100)}
    torch.save(content, tmp_path / "wrong.pt")
    family = str(fabricated.write_family(tmp_path, data))
    done = mulosd(tmp_path, "convert", str(tmp_path / "wrong.pt"), "--family", family, "--part", "model-8")
    assert "it states args.num_classes = 100, model-8 has 10" in str(done.exception)


def test_released_sizes() -> None:
    """Every c2i model has the published number of parameters, and no two of its grids have a ratio."""
    data = read_card(released_families()["llamagen-c2i"])
    for name, entry in data["parts"].items():
        with torch.device("meta"):
            module = build_part(name, entry)
        assert sum(p.numel() for p in module.parameters()) == entry["num_params"], name
    for target, entry in data["targets"].items():
        card = load_card(target)
        assert entry["model"] == f"model-{target.removeprefix('llamagen-c2i-')}"
        assert (card.grid * 16, card.draft_grid) == (card.image_px, None)
