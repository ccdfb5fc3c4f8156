"""What every encoder is: prompts and seeds -> `Condition`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mulosd.models.condition import Condition
from mulosd.types import PromptTokens


@dataclass(frozen=True)
class Encoded:
    """What an encoder made of B prompts: the condition to keep, and per prompt how many of its ids are padding.

    Padding of ids is not masking: Tar's reference fills what its LLM left out with id 0, which counts like any id.
    failed: prompts (0 to B - 1) whose ids rest on logits that are not finite; features are checked by who takes them.
    tokens: what was read of each prompt, () where an encoder does not read text.
    """

    condition: Condition
    padded_ids: tuple[int, ...]
    failed: tuple[int, ...] = ()
    tokens: tuple[PromptTokens, ...] = ()


class Encoder(Protocol):
    """A loaded encoder."""

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """The conditions of B prompts, as the stage keeps them."""
        ...

    def features(self, condition: Condition) -> Condition:
        """A kept condition -> what the image model takes; a cheap, deterministic function."""
        ...
