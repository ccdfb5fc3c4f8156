"""What is known of a target's encoder without loading it: identity, length of its conditions, prompts it takes.

No torch here. `mulosd.text` builds the encoder.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mulosd.prompts.base import check_text
from mulosd.prompts.classes import class_of
from mulosd.sampling.greedy import RULE, is_greedy

VERSION = 1  # of what the encoders do; a change that changes conditions makes it larger
SEEDED = ("tar-llm",)  # architectures that sample
SAMPLER = {"temperature": 1.0, "top_k": 1200, "top_p": 0.95}  # as in Tar's scripts; a card may differ


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
    settings += [RULE] if conditions_are_greedy(card) else []
    text = json.dumps(settings, sort_keys=True)
    return EncoderFacts(hashlib.sha256(text.encode()).hexdigest()[:16], _is_seeded(encoders))


def condition_sampler(card: Any) -> dict[str, Any]:
    """Sampling settings of an encoder that samples: Tar's, but for what the card's `condition` says."""
    return {key: card.condition.get(key, value) for key, value in SAMPLER.items()}


def conditions_are_greedy(card: Any) -> bool:
    """Whether the target's encoder samples, and does it greedily."""
    sampler = condition_sampler(card)
    return _is_seeded(card.encoders) and is_greedy(sampler["temperature"], sampler["top_k"])


def condition_len(card: Any) -> int:
    """Rows T of a card's conditions: the model's longest prefix, or what Tar's `scale` leaves of its square of ids."""
    scale, longest = int(card.condition.get("scale", 0)), int(card.prefix_len)
    return (math.isqrt(longest) // (scale + 1)) ** 2 if scale else longest


def check_prompts(card: Any, prompts: Iterable[str]) -> None:
    """ConfigError for a text that the target cannot be conditioned on, before anything is loaded."""
    for prompt in prompts:
        check_text(prompt, "the prompt")
        if card.num_classes is not None:
            class_of(prompt, card.num_classes)


def _is_seeded(encoders: Mapping[str, Any]) -> bool:
    return bool(encoders) and next(iter(encoders.values()))["architecture"] in SEEDED
