"""Reference outputs of LlamaGen's and Tar's code on tiny random weights: data only, loaded and checked here."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from mulosd.models.ar_dtok import ARDTok
from mulosd.models.condition import Condition
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, llamagen_c2i, llamagen_t2i

FOLDER = Path(__file__).parents[1] / "fixtures"
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


class Fixture(NamedTuple):
    """config; weights under the reference's own keys, float32; other tensors by their name in the file."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]


def load(name: str) -> Fixture:
    """Read a fixture whose bytes are those that its JSON states."""
    data = json.loads((FOLDER / f"{name}.json").read_text())
    path = FOLDER / f"{name}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == data["sha256"], (
        f"{path}: not the file that {name}.json names"
    )
    stored = load_file(path)
    weights = {key[2:]: value.float() for key, value in stored.items() if key.startswith("w.")}
    tensors = {key: value for key, value in stored.items() if not key.startswith("w.")}
    return Fixture(data["config"], weights, tensors)


def gpt_config(config: dict[str, Any], **changes: Any) -> GPTConfig:
    """Our configuration of a fixture's GPT."""
    fields = {
        "dim": config["dim"],
        "n_layers": config["n_layer"],
        "n_heads": config["n_head"],
        "vocab_size": config["vocab_size"],
        "grid": int(config.get("block_size", config.get("max_seq_len")) ** 0.5),
        "prefix_len": config["cls_token_num"],
        "ffn_dim": config["ffn_hidden"],
    }
    return GPTConfig(**{**fields, **changes})


def load_gpt(fixture: Fixture, *, collapses: bool = True, **changes: Any) -> ImageGPT:
    """The fixture's GPT, its weights loaded strictly; without `collapses` the cache keeps every prefix row."""
    config = gpt_config(fixture.config, **changes)
    if fixture.config["model_type"] == "c2i":
        model = llamagen_c2i(config, fixture.config["num_classes"])
    else:
        model = llamagen_t2i(config, fixture.config["caption_dim"])
    model.load_state_dict(fixture.weights, strict=True)
    model.collapses_prefix &= collapses
    return model.eval().requires_grad_(False)


def load_ar_dtok(fixture: Fixture, *, shares_null: bool = True) -> ARDTok:
    """The fixture's AR-DTok, its weights loaded strictly; without `shares_null` it feeds the null prefix every time."""
    model = ARDTok(gpt_config(fixture.config, positions="learned", logits_dtype="model"), fixture.config["cond_dim"])
    model.load_state_dict(fixture.weights, strict=True)
    model.shares_null = shares_null
    return model.eval().requires_grad_(False)


def condition_of(fixture: Fixture, *, masked: bool = True) -> Condition:
    """The caption features, with their left-padded mask or with all rows valid."""
    mask = fixture.tensors["in.mask_left_padded"].bool()
    return Condition(fixture.tensors["in.cond_left_padded"], mask if masked else torch.ones_like(mask))


def agrees(ours: Tensor, reference: Tensor) -> bool:
    """Whether two tensors agree within the stated tolerance."""
    assert ours.shape == reference.shape
    return torch.allclose(ours, reference, **TOLERANCE)


def all_visible(values: Tensor) -> Condition:
    """A condition [B, T] or [B, T, C] without padding."""
    return Condition(values, torch.ones(values.shape[:2], dtype=torch.bool))
