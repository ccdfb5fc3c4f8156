"""What is known of a target's encoder without loading it: identity, length of its conditions, prompts it takes.

No torch here. `mulosd.text` builds the encoder.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mulosd.prompts.classes import class_of

VERSION = 1  # of what the encoders do; a change that changes conditions makes it larger
SEEDED = ("tar-llm",)  # architectures that sample


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
