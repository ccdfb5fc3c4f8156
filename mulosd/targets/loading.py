"""From a card to modules with weights: strict loading and placing."""

from functools import partial
from typing import Any

import torch

from mulosd.errors import EnvironmentProblem, unknown_name
from mulosd.families.card import Card
from mulosd.families.weight_files import check_part
from mulosd.models.architectures import DTYPES, load_part
from mulosd.targets.target import Target


def load(card: Card, *, device: str, dtype: str) -> Target:
    """Read, check and place the parts of a card. Strict: every tensor must be there with its shape.

    The drafter's file is checked with the others and read when a method first drafts with it.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise EnvironmentProblem(f"device {device!r} was asked for but torch sees no CUDA device; use --device cpu.")
    entry = card.raw["targets"][card.target_id]

    def part(name: str) -> Any:
        # A tokenizer may be kept wider than the models, as LlamaGen's is.
        return load_part(card, name, DTYPES[card.raw["parts"][name].get("compute_dtype", dtype)]).to(device)

    if not entry["drafter"]:
        return Target(card, part("vq"), part(entry["model"]), None)
    check_part(card, entry["drafter"])
    return Target(card, part("vq"), part(entry["model"]), partial(part, entry["drafter"]))
