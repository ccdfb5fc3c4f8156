"""Encoders: prompt and seed -> `Condition`. The registry, and what of an encoder is known without loading it.

A target whose card names `encoders` is conditioned by a network of its own (T5, Tar's LLM): encoding is a stage, and
its results are kept (`mulosd.stage.conditions`). The words of tiny and the classes of class-conditional models are
table look-ups, done where they are needed. No torch here.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from mulosd.errors import unknown_name
from mulosd.prompts.classes import class_of

if TYPE_CHECKING:
    from mulosd.families.card import Card
    from mulosd.models.conditioning import Condition

VERSION = 1  # of what the encoders do; a change that changes conditions makes it larger
# Architecture of a target's first encoder -> its class, called as cls(card, device=..., dtype=...).
ENCODERS = {"t5": "mulosd.text.t5:T5", "tar-llm": "mulosd.text.tar_llm:TarLLM"}
SEEDED = ("tar-llm",)  # architectures that sample


@dataclass(frozen=True)
class Encoded:
    """What an encoder made of B prompts: the condition to keep, and per prompt how many of its ids are padding.

    Padding of ids is no masking: Tar's reference fills what its LLM left out with id 0, which counts like any other id.
    """

    condition: "Condition"
    padded_ids: tuple[int, ...]


class Encoder(Protocol):
    """A loaded encoder."""

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """The conditions of B prompts, as the stage keeps them."""
        ...

    def features(self, condition: "Condition") -> "Condition":
        """A kept condition -> what the image model takes; a cheap, deterministic function."""
        ...


@dataclass(frozen=True)
class EncoderFacts:
    """What identifies conditions without loading the encoder.

    identity: 16 hexadecimal digits of everything that changes them: weights, settings, device kind and dtype.
    is_seeded: whether the seed of an image matters; otherwise all images of a prompt share a condition.
    """

    identity: str
    is_seeded: bool


def encoder_facts(card: Any, *, device: str, dtype: str) -> EncoderFacts | None:
    """The facts of a card's encoder; None where the target encodes by itself, so that there is nothing to stage."""
    encoders: Mapping[str, Any] = card.encoders
    if not encoders:
        return None
    settings = [VERSION, encoders, card.condition, card.prefix_len, device.partition(":")[0], dtype]
    text = json.dumps(settings, sort_keys=True)
    first = next(iter(encoders.values()))["architecture"]
    return EncoderFacts(hashlib.sha256(text.encode()).hexdigest()[:16], first in SEEDED)


def condition_len(card: Any) -> int:
    """Rows T of a card's conditions: the model's longest prefix, or what Tar's `scale` leaves of its square of ids."""
    scale, longest = int(card.condition.get("scale", 0)), int(card.prefix_len)
    return (math.isqrt(longest) // (scale + 1)) ** 2 if scale else longest


def check_prompts(card: Any, prompts: Iterable[str]) -> None:
    """ConfigError for a text that the target cannot be conditioned on, before anything is loaded."""
    if card.num_classes is not None:
        for prompt in prompts:
            class_of(prompt, card.num_classes)


def build_encoder(card: "Card", *, device: str, dtype: str) -> Encoder:
    """The encoder of a card. Its weights are read when it is first used."""
    if card.num_classes is not None:
        from mulosd.text.classes import Classes

        return Classes(card.num_classes, device)
    architecture = next((entry["architecture"] for entry in card.encoders.values()), "words")
    if architecture == "words":
        from mulosd.text.words import Words

        return Words(device)
    if architecture not in ENCODERS:
        raise unknown_name("text encoder", architecture, ENCODERS, card.target_id)
    module, _, name = ENCODERS[architecture].partition(":")
    encoder: Encoder = getattr(import_module(module), name)(card, device=device, dtype=dtype)
    return encoder
