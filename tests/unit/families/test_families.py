"""A family folder on disk: cards, hashes, parts that fit, strict loading."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mulosd.errors import ConfigError, DataError
from mulosd.families import card as families
from mulosd.families.card import load_card, read_card, released_families
from mulosd.targets import load_target
from tests.unit.decoding import toys

SAMPLER = {"guidance": 3.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "draft_guidance": 2.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the toy family as float16 files with their card."""
    toy = toys.family()
    parts = {}
    for name, module in (("vq", toy.vq), ("low", toy.drafter), ("high", toy.target)):
        path = tmp_path / f"{name}.safetensors"
        save_file({key: value.half().contiguous() for key, value in module.state_dict().items()}, path)
        parts[name] = {"file": path.name, "sha256": sha256(path), "config": asdict(module.config)}  # type: ignore[call-overload]
    targets = {
        "toy-low": {"model": "low", "drafter": None, "image_px": 16, "sampler": SAMPLER},
        "toy-high": {"model": "high", "drafter": "low", "image_px": 32, "sampler": SAMPLER},
    }
    write_card(tmp_path, {"family": "toy", "targets": targets, "parts": parts})
    return tmp_path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_card(folder: Path, data: dict[str, Any]) -> None:
    (folder / "card.json").write_text(json.dumps(data))


def card_data(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())  # type: ignore[no-any-return]


def test_a_card_states_the_shapes(folder: Path) -> None:
    card = load_card("toy-high", folder)
    assert (card.grid, card.draft_grid, card.ratio, card.num_tokens) == (8, 4, 2, 64)
    assert (card.image_px, card.codebook_size, card.family) == (32, toys.CODES, "toy")
    low = load_card("toy-low", folder)
    assert (low.draft_grid, low.ratio) == (None, None)


def test_the_content_hash_covers_what_changes_an_image(folder: Path) -> None:
    data = card_data(folder)
    before = {target: load_card(target, folder).content_hash for target in data["targets"]}
    data["note"] = "recipes and quality do not matter"
    write_card(folder, data)
    assert load_card("toy-high", folder).content_hash == before["toy-high"]
    for change in (
        lambda d: d["parts"]["vq"].update(sha256="0" * 64),
        lambda d: d["parts"]["low"]["config"].update(rope_scale=0.5),
        lambda d: d["targets"]["toy-high"].update(sampler={**SAMPLER, "top_k": 3}),
        lambda d: d["targets"]["toy-high"].update(pixel_rounding="down"),
    ):
        changed = json.loads(json.dumps(data))
        change(changed)
        write_card(folder, changed)
        assert load_card("toy-high", folder).content_hash != before["toy-high"]


@pytest.mark.parametrize(
    ("multi_grid", "grids", "drafter", "expected"),
    [
        (False, [4, 8], "low", (4, ("checkpoint",))),  # the card must say so
        (True, [], "low", (4, ("checkpoint",))),
        (True, [4, 8], "low", (4, ("checkpoint", "self"))),
        (True, [2, 8], "low", (4, ("checkpoint",))),  # not on the draft grid
        (True, [2, 4, 8], None, (4, ("self",))),
        (True, [8], None, (None, ())),
    ],
)
def test_what_can_draft(
    folder: Path, multi_grid: bool, grids: list[int], drafter: str | None, expected: tuple[int | None, tuple[str, ...]]
) -> None:
    data = card_data(folder)
    data["multi_grid"] = multi_grid
    data["parts"]["high"]["config"]["grids"] = grids
    data["targets"]["toy-high"]["drafter"] = drafter
    write_card(folder, data)
    card = load_card("toy-high", folder)
    assert (card.draft_grid, card.drafters) == expected


# What a user can break, each with its sentence.


def broken(folder: Path, name: str, change: Any) -> None:
    """Change tensors of a part and restate its hash, so that only the layout is wrong."""
    path = folder / f"{name}.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)
    data = card_data(folder)
    data["parts"][name]["sha256"] = sha256(path)
    write_card(folder, data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("norm.weight"), r"missing tensors: norm\.weight"),
        (lambda state: state.update(extra=torch.zeros(2)), "unexpected tensors: extra"),
        (lambda state: state.update({"norm.weight": torch.zeros(3)}), r"wrongly shaped tensors: norm\.weight \[3\]"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_loading_is_strict(folder: Path, change: Any, words: str) -> None:
    broken(folder, "high", change)
    with pytest.raises(DataError, match=rf"high\.safetensors: {words}"):
        load_target("toy-high", folder=folder)
    load_target("toy-low", folder=folder)


def test_a_flipped_byte_is_refused(folder: Path) -> None:
    path = folder / "vq.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"vq\.safetensors: sha256 is"):
        load_target("toy-high", folder=folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "low.safetensors").unlink()
    with pytest.raises(DataError, match="weights of toy-high are missing"):
        load_target("toy-high", folder=folder)


def test_a_file_name_must_stay_in_its_folder(folder: Path) -> None:
    data = card_data(folder)
    data["parts"]["vq"]["file"] = "../vq.safetensors"
    write_card(folder, data)
    with pytest.raises(ConfigError, match="bare file name"):
        load_target("toy-high", folder=folder)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no family card"), ("{", "not valid JSON"), ("[" * 1000, "not valid JSON .nested")]
)
def test_a_broken_card(folder: Path, content: str | None, words: str) -> None:
    (folder / "card.json").unlink()
    if content:
        (folder / "card.json").write_text(content)
    with pytest.raises(DataError, match=words):
        load_card("toy-high", folder)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["family"], "family is missing"),
        (["parts"], "parts is missing"),
        (["targets", "toy-high", "model"], r"targets\.toy-high\.model is missing"),
        (["targets", "toy-high", "sampler", "top_k"], r"targets\.toy-high\.sampler\.top_k is missing"),
        (["parts", "vq"], r"parts\.vq is missing"),
        (["parts", "low"], r"parts\.low is missing"),
        (["parts", "high", "config"], r"parts\.high\.config is missing"),
        (["parts", "high", "config", "grid"], r"parts\.high\.config\.grid is missing"),
    ],
)
def test_a_key_is_missing(folder: Path, keys: list[str], words: str) -> None:
    data = card_data(folder)
    entry = data
    for key in keys[:-1]:
        entry = entry[key]
    del entry[keys[-1]]
    write_card(folder, data)
    with pytest.raises(DataError, match=rf"card\.json: {words}; restore"):
        load_card("toy-high", folder)


def test_another_rounding_of_pixels_is_refused(folder: Path) -> None:
    data = card_data(folder)
    data["targets"]["toy-high"]["pixel_rounding"] = "up"
    write_card(folder, data)
    with pytest.raises(DataError, match=r"targets\.toy-high\.pixel_rounding = 'up'; allowed: nearest, down"):
        load_card("toy-high", folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("guidance", 0.5),
        ("draft_guidance", 0),
        ("guidance", "2"),
        ("guidance", True),
        ("temperature", -0.1),
        ("top_k", 2.5),
        ("top_p", 0),
        ("top_p", 1.01),
    ],
)
def test_a_preset_holds_what_the_knobs_may_hold(folder: Path, key: str, value: Any) -> None:
    data = card_data(folder)
    data["targets"]["toy-high"]["sampler"] = {**SAMPLER, key: value}
    write_card(folder, data)
    with pytest.raises(DataError, match=rf"toy-high\.sampler\.{key} = .* is not allowed; give a") as caught:
        load_card("toy-high", folder)
    assert "draft_" not in key or "1 (no guidance)" in str(caught.value)


@pytest.mark.parametrize("family", released_families())
def test_tar_cuts_pixels_off_and_llamagen_rounds_them(family: str) -> None:
    expected = "down" if family.startswith("tar") else "nearest"
    for target in read_card(released_families()[family])["targets"]:
        assert load_card(target).pixel_rounding == expected


@pytest.mark.parametrize(("value", "words"), [([], "targets must map"), ("8", "targets must map")])
def test_targets_of_the_wrong_kind(folder: Path, value: Any, words: str) -> None:
    write_card(folder, {**card_data(folder), "targets": value})
    with pytest.raises(DataError, match=words):
        load_card("toy-high", folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: parts["high"]["config"].update(grid="8"), "grid = '8' must be a positive integer"),
        (lambda parts: parts["high"]["config"].update(grid=9), "9.*4"),
        (lambda parts: parts["high"]["config"].update(vocab_size=64), "64.*32"),
    ],
    ids=["no number", "grids", "codebooks"],
)
def test_parts_that_do_not_belong_together(folder: Path, change: Any, words: str) -> None:
    data = card_data(folder)
    change(data["parts"])
    write_card(folder, data)
    with pytest.raises(DataError, match=words):
        load_card("toy-high", folder)


def test_an_unknown_target(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown target 'toy-hi'.*Did you mean 'toy-high'"):
        load_card("toy-hi", folder)


def test_shipped_folders_lie_inside_the_package() -> None:
    assert families.family_folder("tiny").parts[-3:] == ("mulosd", "assets", "tiny")
