"""Released sizes: every key and shape of the full-size models, built without memory (parity.md row 18)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mulosd.models.image_gpt import llamagen_t2i
from mulosd.models.transformer import GPTConfig
from mulosd.models.vq import VQConfig, VQModel

INVENTORY = Path(__file__).parents[3] / "shared" / "fixtures" / "state_dict_inventory.json"
needs_inventory = pytest.mark.skipif(
    not INVENTORY.is_file(), reason="needs ../shared/fixtures/state_dict_inventory.json"
)


def gpt(dim: int, layers: int, heads: int) -> nn.Module:
    with torch.device("meta"):
        return llamagen_t2i(GPTConfig(dim, layers, heads, 16384, 32, 120), 2048)


def vq16(**changes: Any) -> nn.Module:
    with torch.device("meta"):
        return VQModel(VQConfig(**changes))


def shapes(model: nn.Module) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in model.state_dict().items()}


def listed(name: str) -> dict[str, list[int]]:
    """Keys and shapes of the inventory with '{i}' written out."""
    entries = json.loads(INVENTORY.read_text())["models"][name]
    return expand_keys(entries)


def expand_keys(entries: dict[str, Any]) -> dict[str, list[int]]:
    result = {}
    for key, entry in entries.items():
        for i in range(entry["count"]) if "{i}" in key else [0]:
            result[key.replace("{i}", str(i))] = entry["shape"]
    return result


@pytest.mark.parametrize(
    ("dim", "layers", "heads", "hidden", "params"),
    [(768, 12, 12, 2048, 112_282_368), (1280, 36, 20, 3584, 777_678_080), (3200, 24, 32, 8704, 3_110_249_600)],
    ids=["GPT-B", "GPT-XL", "GPT-3B"],
)
def test_sizes_of_the_gpts(dim: int, layers: int, heads: int, hidden: int, params: int) -> None:
    model = gpt(dim, layers, heads)
    assert shapes(model)["layers.0.feed_forward.w1.weight"] == [hidden, dim]
    assert sum(p.numel() for p in model.parameters()) == params


def test_sizes_of_the_tokenizers() -> None:
    assert sum(p.numel() for p in vq16().parameters()) == 71_883_403
    assert sum(p.numel() for p in vq16(ch_mult=(1, 2, 2, 4)).parameters()) == 70_109_835


@needs_inventory
def test_keys_of_gpt_xl() -> None:
    assert shapes(gpt(1280, 36, 20)) == listed("llamagen_GPT-XL_t2i")


@needs_inventory
def test_keys_of_vq16() -> None:
    expected = listed("vq_VQ-16")
    del expected["quantize.codebook_used"]  # usage statistics of training
    assert shapes(vq16()) == expected
