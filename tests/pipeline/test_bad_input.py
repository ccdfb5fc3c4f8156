"""Settings that cannot work, through the commands: one sentence, exit code 2, nothing written, no weights loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.cli.main import main
from tests import fabricated

KNOBS: list[tuple[str, dict[str, Any], str]] = [
    ("mulosd", {"radius": 17}, "mulosd.radius = 17 exceeds the 16 x 16 grid of tiny-mid; choose from 0 to 16."),
    ("mulosd", {"radius": 1, "rejection": "local"}, "mulosd.radius = 1 does nothing with rejection 'local'"),
    ("zipar", {"window": 0}, "zipar.window = 0 is too small; the smallest allowed value is 1."),
    ("mulosd", {"island_window": 0}, "mulosd.island_window = 0 is too small; the smallest allowed value is 1."),
    ("draft-only", {"draft_window": 0}, "draft-only.draft_window = 0 is too small; the smallest allowed value is 1."),
    ("mulosd", {"pool_k": 0}, "mulosd.pool_k = 0 is too small; the smallest allowed value is 1."),
    ("mulosd", {"pool_k": 4097}, "mulosd.pool_k = 4097 exceeds the"),
]


def fourfold(path: Path) -> None:
    from tests.unit.upsample.test_sr import saved  # which is skipped as a whole without the extra

    saved(path, 4)


NETWORKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "wrong-scale": (fourfold, "network enlarges 4 times, from 3 to 3 channels; give one that enlarges"),
    "unknown": (
        lambda path: torch.save({"a": torch.zeros(3)}, path),
        "fit no architecture that spandrel knows; give a",
    ),
    "missing": (lambda path: None, "there is no such file"),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded before the settings were checked")

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MULOSD_WEIGHTS", "")
    monkeypatch.setattr("mulosd.targets.loading.load", loaded)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*args: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(args)
        out, err = capsys.readouterr()
        assert (stop.value.code, out, len(err.strip().splitlines())) == (2, "", 1), err
        assert err.startswith("mulosd: ")
        assert list(Path.cwd().iterdir()) == []
        return err

    return run


def generate(method: str, knobs: dict[str, Any], target: str = "tiny-mid") -> list[str]:
    settings = [word for key, value in knobs.items() for word in ("--set", f"{key}={value}")]
    return ["generate", "--target", target, "--method", method, "--prompt", "p", "--out", "x.png", *settings]


def run(folder: Path, method: str, knobs: dict[str, Any], target: str = "tiny-mid") -> list[str]:
    prompts = {"name": "scenes", "count": 2}
    sweep = {"name": "bad", "target": target, "prompts": prompts, "methods": [{"method": method, "set": knobs}]}
    (folder / "bad.yaml").write_text(json.dumps(sweep))
    return ["run", str(folder / "bad.yaml"), "--out", "store", "--quiet"]


@pytest.mark.parametrize(("method", "knobs", "text"), KNOBS, ids=[str(knobs) for _, knobs, _ in KNOBS])
def test_knobs(method: str, knobs: dict[str, Any], text: str, refused: Callable[..., str], tmp_path: Path) -> None:
    assert text in refused(*generate(method, knobs))
    assert text in refused(*run(tmp_path, method, knobs))


@pytest.mark.parametrize("name", NETWORKS)
def test_super_resolution_networks(name: str, refused: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("spandrel", reason="the packages of the extra `sr` are not installed")
    make, text = NETWORKS[name]
    make(tmp_path / "net.pth")
    knobs = {"upsampler": "sr", "sr_model": str(tmp_path / "net.pth")}
    assert text in refused(*generate("draft-only", knobs))
    assert text in refused(*run(tmp_path, "mulosd", knobs))


def test_models_that_do_not_belong_together(refused: Callable[..., str], tmp_path: Path) -> None:
    """Resolutions without a whole ratio; checkpoints with different codebooks."""
    changes = {
        "grid": (3, "the 8-cell grid of toygen-16 is not a multiple of its drafter's 3; name a drafter whose grid"),
        "vocab_size": (64, "model-8 draws 64 codes, vq has 48; restore parts of one family."),
    }
    for key, (value, text) in changes.items():
        family = fabricated.family()
        family["parts"]["model-8"]["config"][key] = value
        (tmp_path / "weights" / "toygen").mkdir(parents=True, exist_ok=True)
        (tmp_path / "weights" / "toygen" / "card.json").write_text(json.dumps(family))
        file = str(fabricated.write_family(tmp_path, family))
        assert text in refused("convert", "model.pt", "--family", file, "--part", "model-16")
        at = ("--weights", str(tmp_path / "weights"))
        assert text in refused(*at, *generate("mulosd", {}, "toygen-16"))
        assert text in refused(*at, *run(tmp_path, "mulosd", {}, "toygen-16"))


def test_good_settings_get_as_far_as_the_weights() -> None:
    with pytest.raises(AssertionError, match="weights were loaded"):
        main(generate("mulosd", {"radius": 16}))
