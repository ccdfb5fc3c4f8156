"""Text encoders: Hugging Face folders that become parts of a family, and those of another model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mulosd.convert.part import convert
from mulosd.errors import DataError
from mulosd.families.card import load_card
from mulosd.families.weight_files import check_part
from tests import fabricated


def llm_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    stated = {"model_type": "llava_qwen", "hidden_size": 32, "num_hidden_layers": 2, **config}
    (folder / "config.json").write_text(json.dumps(stated))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "code.py").write_text("raise SystemExit")
    save_file({"w": torch.ones(3, 4, dtype=torch.bfloat16)}, folder / "model.safetensors")
    return folder


def test_an_encoders_folder_is_taken_over(tmp_path: Path) -> None:
    family = str(fabricated.write_family(tmp_path, fabricated.tar_family()))
    source, out = llm_folder(tmp_path / "hub"), tmp_path / "out"
    for name in ("first", "again"):
        done = convert(source, family=family, part="llm", out=out)
        assert sorted(p.name for p in done.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"], (
            name
        )
        assert (done.entry["dtype"], done.entry["num_params"]) == ("bfloat16", 12)
        assert sorted(p.name for p in out.iterdir()) == ["card.json", "llm"]
    card = load_card("toytar-8", out)
    assert card.missing == ("vq", "model-8", "ta-tok")
    assert check_part(replace(card, missing=()), "llm") == out / "llm"
    (out / "llm" / "tokenizer.json").unlink()
    (out / "llm" / "tokenizer.json").write_text("[]")
    with pytest.raises(DataError, match=r"tokenizer\.json: sha256 is"):
        check_part(replace(card, missing=()), "llm")


def test_how_a_folder_came_changes_no_key(tmp_path: Path) -> None:
    """`mulosd fetch` leaves its record in the folder; the same files put there by hand are the same encoder."""
    family = str(fabricated.write_family(tmp_path, fabricated.tar_family()))
    source = llm_folder(tmp_path / "hub")
    by_hand = convert(source, family=family, part="llm", out=tmp_path / "out").entry
    (source / "sources.json").write_text('{"revision": "a"}')
    fetched = convert(source, family=family, part="llm", out=tmp_path / "out").entry
    assert fetched["sha256"] == by_hand["sha256"]
    assert "sources.json" not in fetched["files"]


def test_of_t5_the_encoder_half_alone_is_counted(tmp_path: Path) -> None:
    data = fabricated.tar_family()
    data["parts"]["llm"] = {"architecture": "t5", "config": {}}
    source = llm_folder(tmp_path / "hub", model_type="t5")
    names = {"shared.weight": 5, "encoder.block.0.w": 7, "decoder.block.0.w": 11, "lm_head.weight": 13}
    save_file({name: torch.ones(size) for name, size in names.items()}, source / "model.safetensors")
    done = convert(source, family=str(fabricated.write_family(tmp_path, data)), part="llm", out=tmp_path / "out")
    assert done.entry["num_params"] == 5 + 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no safetensors files; pickled weights"),
        (lambda f: (f / "config.json").unlink(), "not a configuration"),
        (lambda f: (f / "config.json").write_text('{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2}'),
         "model_type = 'llama', not 'qwen2 or llava_qwen'"),
        (lambda f: (f / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 3584}'),
         "hidden_size = 3584, not 32; num_hidden_layers = None, not 2"),
    ],
)  # fmt: skip
def test_a_folder_of_another_model(tmp_path: Path, change: Any, words: str) -> None:
    family = str(fabricated.write_family(tmp_path, fabricated.tar_family()))
    source = llm_folder(tmp_path / "hub")
    change(source)
    with pytest.raises(DataError, match=words):
        convert(source, family=family, part="llm", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
