"""Checkpoint files as they are published, fabricated: real names, wrappers and key sets, random weights, toy sizes."""

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import modules
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mulosd.models.architectures import build_part

SAMPLER = {"guidance": 3.0, "temperature": 1.0, "top_k": 20, "top_p": 1.0, "draft_guidance": 3.0}
VQ = {"ch": 32, "ch_mult": [1, 1], "num_res_blocks": 1, "z_channels": 32, "codebook_size": 48, "codebook_dim": 4}
INVENTORY = Path(__file__).parent / "fixtures" / "state_dict_inventory.json"


def gpt_config(grid: int) -> dict[str, Any]:
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 48, "grid": grid, "prefix_len": 6}
    return {**sizes, "ffn_dim": 32, "caption_dim": 16}


def family() -> dict[str, Any]:
    """A family in LlamaGen's layout with two resolutions and one tokenizer."""
    return {
        "family": "toygen",
        "parts": {
            "vq": {"architecture": "vq", "config": VQ, "source": {"file": "vq.pt"}},
            "model-8": {"architecture": "llamagen-t2i", "config": gpt_config(4), "source": {"file": "stage1.pt"}},
            "model-16": {"architecture": "llamagen-t2i", "config": gpt_config(8), "source": {"file": "stage2.pt"}},
        },
        "targets": {
            "toygen-8": {"model": "model-8", "drafter": None, "image_px": 8, "sampler": SAMPLER},
            "toygen-16": {"model": "model-16", "drafter": "model-8", "image_px": 16, "sampler": SAMPLER},
        },
    }


def tar_family() -> dict[str, Any]:
    """A family in Tar's layout: AR-DTok at two resolutions, TA-Tok's decoder half and an LLM folder."""
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 48, "prefix_len": 9, "ffn_dim": 32, "cond_dim": 16}
    positions = {"positions": "learned", "logits_dtype": "model"}
    ta_tok = {"width": 16, "bottleneck_dim": 8, "codebook_size": 64, "decoder_layers": 1, "decoder_heads": 2}
    encoders = {"encoders": ["llm", "ta-tok"], "sampler": SAMPLER}
    return {
        "family": "toytar",
        "parts": {
            "vq": {"architecture": "vq", "config": VQ},
            "model-8": {"architecture": "ar-dtok", "config": {**sizes, **positions, "grid": 4}},
            "model-16": {"architecture": "ar-dtok", "config": {**sizes, **positions, "grid": 8}},
            "ta-tok": {"architecture": "ta-tok", "config": {**ta_tok, "decoder_mlp": 16, "decoder_side": 4}},
            "llm": {"architecture": "tar-llm", "config": {"hidden_size": 32, "num_hidden_layers": 2}},
        },
        "targets": {
            "toytar-8": {"model": "model-8", "drafter": None, "image_px": 8, **encoders},
            "toytar-16": {"model": "model-16", "drafter": "model-8", "image_px": 16, **encoders},
        },
    }


def class_family() -> dict[str, Any]:
    """A family in LlamaGen's class-to-image layout with two resolutions of ratio 2 and ten classes."""
    data = family()
    for name, grid in (("model-8", 4), ("model-16", 8)):
        config = {**gpt_config(grid), "prefix_len": 1, "num_classes": 10}
        del config["caption_dim"]
        data["parts"][name] |= {"architecture": "llamagen-c2i", "config": config}
    targets = {"toyclass-8": data["targets"]["toygen-8"], "toyclass-16": data["targets"]["toygen-16"]}
    return {**data, "family": "toyclass", "targets": targets}


def write_family(folder: Path, data: dict[str, Any]) -> Path:
    """The family file that `--family` takes."""
    path = folder / f"{data['family']}.json"
    path.write_text(json.dumps(data))
    return path


def state(part: str, seed: int = 0, *, data: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Random weights of a part of a family (default: `family()`), the norms near one."""
    generator = torch.Generator().manual_seed(seed)
    entry = (data or family())["parts"][part]
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in build_part(part, entry).state_dict().items()}
    return {
        key: torch.randn(shape, generator=generator) * 0.3 + (1.0 if "norm" in key and key.endswith("weight") else 0.0)
        for key, shape in shapes.items()
    }


def training_args(grid: int) -> Namespace:
    """What LlamaGen's training script keeps beside the weights."""
    return Namespace(image_size=16 * grid, downsample_size=16, cls_token_num=6, vocab_size=48, gpt_model="GPT-XL")


def lantern(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """LlamaGen's names -> the Hugging Face names of LANTERN's copies."""
    names = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
    blocks = {
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    renamed = {}
    for key, value in tensors.items():
        block = re.fullmatch(r"layers\.(\d+)\.(.+)\.weight", key)
        if key.startswith("cls_embedding"):
            renamed[f"model.{key}"] = value
        elif block and block[2] == "attention.wqkv":
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                renamed[f"model.layers.{block[1]}.self_attn.{part}_proj.weight"] = rows.contiguous()
        elif block:
            renamed[f"model.layers.{block[1]}.{blocks[block[2]]}.weight"] = value
        else:
            renamed[f"{names[key.removesuffix('.weight')]}.weight"] = value
    return renamed


def full_size(model: str) -> dict[str, Tensor]:
    """Tensors of a released model with their real names and shapes, each one number large."""
    tensors = {}
    for key, entry in json.loads(INVENTORY.read_text())["models"][model].items():
        for i in range(entry["count"]) if "{i}" in key else [0]:
            tensors[key.replace("{i}", str(i))] = torch.zeros(1).expand(entry["shape"])
    return tensors


class EasyDict(dict[str, Any]):
    """Pickles as `easydict.EasyDict` does: entries that are attributes too."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        for key, value in values.items():
            self[key] = EasyDict(value) if isinstance(value, dict) else value
            setattr(self, key, self[key])


EasyDict.__module__ = "easydict"


@contextmanager
def easydict() -> Iterator[None]:
    """Inside it files with an EasyDict can be written, as if the package were installed."""
    modules["easydict"] = ModuleType("easydict")
    modules["easydict"].EasyDict = EasyDict  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del modules["easydict"]
