"""Released sizes: every key and shape of the full-size models, built without memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mulosd.models.ar_dtok import ARDTok
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import llamagen_c2i, llamagen_t2i
from mulosd.models.ta_tok import UNUSED, TATok, TATokConfig, TATokDecoder
from mulosd.models.vq import VQConfig, VQModel

INVENTORY = json.loads((Path(__file__).parents[1] / "fixtures" / "state_dict_inventory.json").read_text())
VQ_16, VQ_8 = (1, 1, 2, 2, 4), (1, 2, 2, 4)


def t2i(dim: int, layers: int, heads: int) -> nn.Module:
    return llamagen_t2i(GPTConfig(dim, layers, heads, 16384, 32, 120), 2048)


def c2i(dim: int, layers: int, heads: int) -> nn.Module:
    return llamagen_c2i(GPTConfig(dim, layers, heads, 16384, 24, 1), 1000)


def ar_dtok(grid: int) -> nn.Module:
    return ARDTok(GPTConfig(1280, 30, 20, 16384, grid, 729, positions="learned", logits_dtype="model"), 1152)


def vq(ch_mult: tuple[int, ...]) -> nn.Module:
    return VQModel(VQConfig(ch_mult=ch_mult))


def ta_tok() -> nn.Module:
    return TATok(TATokConfig())


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {  # builder; beginnings of keys without a use
    "llamagen_GPT-XL_t2i": (lambda: t2i(1280, 36, 20), ()),
    "llamagen_GPT-XL_c2i": (lambda: c2i(1280, 36, 20), ()),
    "vq_VQ-16": (lambda: vq(VQ_16), ("quantize.codebook_used",)),  # usage statistics of training
    "vq_VQ-8": (lambda: vq(VQ_8), ("quantize.codebook_used",)),
    "ta_tok": (ta_tok, UNUSED),
    "ar_dtok_lp_256px": (lambda: ar_dtok(16), ()),
}
COUNTS: dict[str, Callable[[], nn.Module]] = {
    "GPT-B/t2i": lambda: t2i(768, 12, 12),
    "GPT-B/c2i": lambda: c2i(768, 12, 12),
    "GPT-L/t2i": lambda: t2i(1024, 24, 16),
    "GPT-L/c2i": lambda: c2i(1024, 24, 16),
    "GPT-XL/t2i": lambda: t2i(1280, 36, 20),
    "GPT-XL/c2i": lambda: c2i(1280, 36, 20),
    "VQ-16": lambda: vq(VQ_16),
    "VQ-8": lambda: vq(VQ_8),
    "AR-DTok-LP/256": lambda: ar_dtok(16),
    "AR-DTok-LP/512": lambda: ar_dtok(32),
    "AR-DTok-LP/1024": lambda: ar_dtok(64),
}


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def shapes(model: nn.Module) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in model.state_dict().items()}


def listed(name: str) -> dict[str, list[int]]:
    """Keys and shapes of the inventory with '{i}' written out."""
    entries: dict[str, Any] = INVENTORY["models"][name]
    return {
        key.replace("{i}", str(i)): entry["shape"]
        for key, entry in entries.items()
        for i in range(entry["count"] if "{i}" in key else 1)
    }


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_no_model_of_the_inventory_is_left_out() -> None:
    assert set(MODELS) == set(INVENTORY["models"])
    assert set(COUNTS) | {"TA-Tok"} == set(INVENTORY["parameter_counts"])


@pytest.mark.parametrize("name", MODELS)
def test_keys_and_shapes(name: str) -> None:
    build, unused = MODELS[name]
    expected = listed(name)
    dropped = {key for key in expected if key.startswith(unused)} if unused else set()
    assert bool(dropped) == bool(unused)
    assert shapes(on_meta(build)) == {key: shape for key, shape in expected.items() if key not in dropped}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    model, counts = on_meta(COUNTS[name]), INVENTORY["parameter_counts"][name]
    assert num_parameters(model) == counts["parameters"]
    if "abs_pe" in counts:
        assert shapes(model)["abs_pe"] == counts["abs_pe"]


def test_parameter_counts_of_ta_tok() -> None:
    """All but the two pooling heads, which the inventory counts."""
    model, counts = on_meta(ta_tok), INVENTORY["parameter_counts"]["TA-Tok"]
    heads = [shape for key, shape in listed("ta_tok").items() if key.startswith(UNUSED) and "scale_layer" not in key]
    assert num_parameters(model) + sum(torch.Size(shape).numel() for shape in heads) == counts["parameters"]
    assert num_parameters(model.get_submodule("bottleneck")) == counts["bottleneck"]


def test_the_decoder_half_is_a_part_of_the_file() -> None:
    """What text-to-image reads of ta_tok.pth."""
    half = shapes(on_meta(lambda: TATokDecoder(TATokConfig())))
    assert half.items() <= listed("ta_tok").items()
    begins = ("bottleneck.regularizer.", "bottleneck.out_linear.", "decoder.", "decode_task_layer.")
    assert half.keys() == {key for key in listed("ta_tok") if key.startswith(begins) and not key.startswith(UNUSED)}


@pytest.mark.parametrize(
    ("dim", "layers", "heads", "hidden", "params"),
    [(2048, 22, 32, 5632, 1_205_954_560), (3200, 24, 32, 8704, 3_110_249_600), (4096, 32, 32, 11008, 6_635_655_168)],
    ids=["GPT-1B", "GPT-3B", "GPT-7B"],
)
def test_sizes_of_the_larger_gpts(dim: int, layers: int, heads: int, hidden: int, params: int) -> None:
    """The sizes that LlamaGen publishes."""
    model = on_meta(lambda: t2i(dim, layers, heads))
    assert shapes(model)["layers.0.feed_forward.w1.weight"] == [hidden, dim]
    assert num_parameters(model) == params


def test_another_shape_is_seen() -> None:
    wrong = on_meta(lambda: llamagen_t2i(GPTConfig(1280, 36, 20, 16384, 32, 119), 2048))
    assert shapes(wrong) != listed("llamagen_GPT-XL_t2i")
