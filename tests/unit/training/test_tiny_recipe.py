"""Stages, publishing and the card of the tiny family, on the shrunk layout."""

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mulosd.errors import ConfigError, DataError
from mulosd.families import card as families
from mulosd.families.card import load_card
from mulosd.targets import load_target
from mulosd.training import gpt, tiny
from tests import tiny_family


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family.shrink(monkeypatch)
    ticks = itertools.count()
    monkeypatch.setattr(gpt, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        tiny_family.shrink(patch)
        return tiny_family.work_folder(tmp_path_factory.mktemp("work"))


@pytest.fixture
def folder(work: Path, tmp_path: Path) -> Path:
    tiny.publish(work, tmp_path / "family")
    return tmp_path / "family"


def edit(folder: Path, change: dict[str, object], part: str) -> None:
    card = json.loads((folder / "card.json").read_text())
    card["parts"][part] |= change
    (folder / "card.json").write_text(json.dumps(card))


def test_a_published_family_loads_what_was_trained(work: Path, folder: Path) -> None:
    """Rounded to float16 as `as_published` says, so that codes do not move between training and use."""
    target = load_target("tiny-high", folder=folder)
    trained = tiny.load_vq(work).state_dict()
    assert all(torch.equal(value, trained[key]) for key, value in target.vq.state_dict().items())
    rounded = tiny.as_published(torch.load(work / "high.pt", weights_only=True)["model"])
    assert all(torch.equal(value, rounded[key]) for key, value in target.model.state_dict().items())
    assert target.drafter is not None
    assert target.drafter.config.grid == 2
    assert not any(param.requires_grad for param in target.model.parameters())
    assert load_file(folder / "high.safetensors")["output.weight"].dtype == torch.float16


def test_the_card_says_how_long_was_trained_and_not_what_was_planned(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work, tmp_path / "work")
    (tmp_path / "work" / "low.pt").unlink()
    tiny.train_gpt_stage(tmp_path / "work", "low", minutes=1 / 60)
    tiny.publish(tmp_path / "work", tmp_path / "family")
    parts = json.loads((tmp_path / "family" / "card.json").read_text())["parts"]
    assert parts["low"]["recipe"]["minutes"] == 1 / 60
    assert parts["low"]["recipe"]["starts_from"] is None
    assert "recipe" not in torch.load(work / "mid.pt", weights_only=True)  # as checkpoints of 0.1.0
    assert (parts["mid"]["recipe"]["minutes"], parts["mid"]["trained"]["seconds"]) == (0, 0.0)


def test_rounding_is_that_of_float16_and_happens_once() -> None:
    state = {"weight": torch.tensor([1.0, 1 / 3, 1e-3, 65504.0])}
    once = tiny.as_published(state)
    assert once["weight"].dtype == torch.float32
    assert np.array_equal(once["weight"].numpy(), state["weight"].numpy().astype(np.float16).astype(np.float32))
    assert float(once["weight"][1]) != float(state["weight"][1])
    assert torch.equal(tiny.as_published(once)["weight"], once["weight"])


def test_the_card_tells_grids_hashes_and_recipe(folder: Path) -> None:
    card = load_card("tiny-mid", folder)
    assert (card.grid, card.image_px, card.draft_grid, card.ratio, card.num_tokens) == (4, 16, 2, 2, 16)
    assert load_card("tiny-low", folder).ratio is None
    raw = families.read_family(folder)
    for part in raw["parts"].values():
        assert part["sha256"] == hashlib.sha256((folder / part["file"]).read_bytes()).hexdigest()
    assert raw["parts"]["mid"]["recipe"]["starts_from"] == "low"
    assert raw["data_sha256"] == tiny.world_hash()
    assert tiny.world_hash(count=2) != tiny.world_hash(count=3)
    assert raw["quality"] == {}


def test_weights_and_preset_are_the_identity(folder: Path) -> None:
    before = load_card("tiny-mid", folder).content_hash
    tiny.set_quality(folder, {"any": 1}, {})
    assert load_card("tiny-mid", folder).content_hash == before
    tiny.set_quality(folder, {}, {"tiny-mid": {"guidance": 2.0}})
    changed = load_card("tiny-mid", folder).content_hash
    assert changed != before
    edit(folder, {"sha256": "0" * 64}, "low")  # the drafter's
    assert load_card("tiny-mid", folder).content_hash != changed


def test_quality_and_presets_are_written_and_the_rest_is_kept(folder: Path) -> None:
    before = families.read_family(folder)
    quality = {"gate": {"passed": False}}
    tiny.set_quality(folder, quality, {"tiny-high": {"guidance": 2.0, "draft_guidance": 4.0}})
    after = families.read_family(folder)
    assert after["quality"] == quality
    assert after["targets"]["tiny-high"]["sampler"] == {**tiny.SAMPLER, "guidance": 2.0, "draft_guidance": 4.0}
    after["quality"] = before["quality"]
    after["targets"]["tiny-high"]["sampler"] = before["targets"]["tiny-high"]["sampler"]
    assert after == before
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] + [".safetensors"] * 5


def test_a_file_with_another_hash_is_refused(folder: Path) -> None:
    path = folder / "mid.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"mid.safetensors: sha256 is .* card.json says .* restore the file"):
        load_target("tiny-mid", folder=folder)
    load_target("tiny-high", folder=folder)  # does not use it


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "low.safetensors").unlink()
    with pytest.raises(DataError, match=r"low.safetensors: weights of tiny-mid are missing"):
        load_target("tiny-mid", folder=folder)


def test_a_path_as_file_name_is_refused(folder: Path) -> None:
    edit(folder, {"file": "../family/mid.safetensors"}, "mid")
    with pytest.raises(ConfigError, match="must be a bare file name"):
        load_target("tiny-mid", folder=folder)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    """The hash is right, the tensors are not: axial positions have the grid's length."""
    low = families.read_family(folder)["parts"]["low"]
    edit(folder, {"file": low["file"], "sha256": low["sha256"]}, "mid")
    with pytest.raises(DataError, match=r"wrongly shaped tensors: col_positions \[2, 32\], not \[4, 32\]"):
        load_target("tiny-mid", folder=folder)


def test_a_folder_without_a_card_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no family card there; train one"):
        load_card("tiny-mid", tmp_path)
    (tmp_path / "card.json").write_text('{"family": ')
    with pytest.raises(DataError, match="not valid JSON"):
        load_card("tiny-mid", tmp_path)


def test_an_unknown_target_is_refused_with_the_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown target 'tiny-mud'.*Did you mean 'tiny-mid'"):
        load_card("tiny-mud", folder)


def test_stages_need_the_ones_below(tmp_path: Path, work: Path) -> None:
    with pytest.raises(ConfigError, match="unknown training stage 'hihg'"):
        tiny.main(tmp_path, stage="hihg")
    with pytest.raises(DataError, match=r"vq.pt: not trained yet; run `mulosd train tiny --stage vq` first"):
        tiny.train_gpt_stage(tmp_path, "low")
    (tmp_path / "vq.pt").write_bytes((work / "vq.pt").read_bytes())
    with pytest.raises(DataError, match=r"low.pt: not trained yet"):
        tiny.train_gpt_stage(tmp_path, "mid")


def test_a_stage_is_reproducible_and_starts_from_the_one_below(tmp_path: Path, work: Path) -> None:
    states = []
    for name in ("a", "b"):
        out = tmp_path / name
        out.mkdir()
        for file in ("vq.pt", "low.pt"):
            (out / file).write_bytes((work / file).read_bytes())
        torch.manual_seed(len(states))  # whatever was drawn before must not matter
        assert tiny.train_gpt_stage(out, "mid", minutes=1 / 60).step == 1
        states.append(torch.load(out / "mid.pt", weights_only=True)["model"])
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    below = torch.load(work / "low.pt", weights_only=True)["model"]
    # One step at a thirtieth of the rate: still far nearer to the model below than to a fresh one.
    assert float((states[0]["output.weight"] - below["output.weight"]).abs().mean()) < 0.01
    assert float(below["output.weight"].abs().mean()) > 0.1


def test_a_fresh_low_model_depends_on_its_seed_alone(tmp_path: Path, work: Path) -> None:
    states = []
    for name in ("a", "b"):
        out = tmp_path / name
        out.mkdir()
        (out / "vq.pt").write_bytes((work / "vq.pt").read_bytes())
        torch.manual_seed(len(states))
        tiny.train_gpt_stage(out, "low", minutes=1e-9)
        states.append(torch.load(out / "low.pt", weights_only=True)["model"])
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_a_trained_tokenizer_is_left_alone(work: Path) -> None:
    before = (work / "vq.pt").read_bytes()
    tiny.train_vq_stage(work)
    assert (work / "vq.pt").read_bytes() == before
