"""Targets: the models of one card, loaded, and decoding with them. The only package that may know all others.

`load_target("tiny-high").decode(prompts, seeds, method)`. Importing this package loads no torch, so that a plan may
look at the cards through it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mulosd.families.card import load_card, target_ids

if TYPE_CHECKING:
    from mulosd.targets.target import Target
    from mulosd.text.encoder import Encoder

__all__ = ["load_card", "load_encoder", "load_target", "target_ids"]


def load_target(target_id: str, *, device: str = "cpu", dtype: str = "float32", folder: Path | None = None) -> "Target":
    """Load weights onto a device. dtype: float32, float64, bfloat16 or float16."""
    from mulosd.targets.loading import load

    return load(load_card(target_id, folder), device=device, dtype=dtype)


def load_encoder(target_id: str, *, device: str = "cpu", dtype: str = "float32") -> "Encoder":
    """The encoder of a target without the target; see `mulosd.text`."""
    from mulosd.text import build_encoder

    return build_encoder(load_card(target_id), device=device, dtype=dtype)
