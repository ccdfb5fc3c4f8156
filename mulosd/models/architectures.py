"""Which class an architecture of a card is, and what of a state dict does not fit it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mulosd.errors import DataError, join_some, unknown_name
from mulosd.families.card import Card
from mulosd.families.weight_files import check_part
from mulosd.models.ar_dtok import ARDTok
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import llamagen_c2i, llamagen_t2i, tiny_gpt
from mulosd.models.ta_tok import TATokConfig, TATokDecoder
from mulosd.models.vq import VQConfig, VQModel

Config = Mapping[str, Any]


def _llamagen_t2i(config: Config) -> nn.Module:
    return llamagen_t2i(GPTConfig(**_without(config, "caption_dim")), config["caption_dim"])


def _llamagen_c2i(config: Config) -> nn.Module:
    return llamagen_c2i(GPTConfig(**_without(config, "num_classes")), config["num_classes"])


def _ar_dtok(config: Config) -> nn.Module:
    return ARDTok(GPTConfig(**_without(config, "cond_dim")), config["cond_dim"])


BUILDERS: dict[str, Callable[[Config], nn.Module]] = {
    "vq": lambda config: VQModel(VQConfig(**config)),
    "tiny": lambda config: tiny_gpt(GPTConfig(**config)),
    "llamagen-t2i": _llamagen_t2i,
    "llamagen-c2i": _llamagen_c2i,
    "ar-dtok": _ar_dtok,
    "ta-tok": lambda config: TATokDecoder(TATokConfig(**config)),
}


def build_part(name: str, entry: Mapping[str, Any]) -> nn.Module:
    """The module of a card's part with unset weights: random initialisation is left out, as it costs seconds."""
    architecture = entry.get("architecture", "vq" if name == "vq" else "tiny")
    if architecture not in BUILDERS:
        raise unknown_name("architecture", architecture, BUILDERS, f"parts.{name}")
    config = {key: tuple(value) if isinstance(value, list) else value for key, value in entry["config"].items()}
    with _Unset():
        return BUILDERS[architecture](config)


def differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """What of a state dict does not fit, as words with the first names; "" when all does."""
    shapes = [key for key in expected if key in found and expected[key].shape != found[key].shape]
    shown = [f"{key} {list(found[key].shape)}, not {list(expected[key].shape)}" for key in shapes]
    kinds = {
        "missing": sorted(expected.keys() - found.keys()),
        "unexpected": sorted(found.keys() - expected.keys()),
        "wrongly shaped": sorted(shown),
    }
    return "; ".join(f"{kind} tensors: {join_some(names)}" for kind, names in kinds.items() if names)


def _without(config: Config, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


class _Unset(TorchFunctionMode):
    """Inside it random initialisers leave their tensor as it is."""

    SKIPPED = frozenset({Tensor.uniform_, Tensor.normal_})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in self.SKIPPED else func(*args, **(kwargs or {}))


DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_part(card: Card, name: str, dtype: torch.dtype) -> nn.Module:
    """One part on the CPU, its weights in `dtype`; DataError names what is missing, unexpected or wrongly shaped."""
    path = check_part(card, name)
    module = build_part(name, card.raw["parts"][name])
    state = {key: value.to(dtype) if value.is_floating_point() else value for key, value in load_file(path).items()}
    wrong = differences(module.state_dict(), state)
    if wrong:
        raise DataError(f"{path}: {wrong}; restore the file.")
    module.load_state_dict(state, assign=True)
    return module.to(dtype=dtype).eval().requires_grad_(False)
