"""The words of the tiny family: a table look-up, so nothing is staged."""

from collections.abc import Sequence

import torch

from mulosd.models.condition import Condition
from mulosd.scenes.words import read_words
from mulosd.text.encoder import Encoded


class Words:
    """Prompts -> word ids [B, T]; padding is a word like any other, so all rows are valid."""

    def __init__(self, device: str) -> None:
        self._device = device

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """Seeds do not matter."""
        words = [read_words(prompt) for prompt in prompts]
        ids = torch.tensor([own for own, _ in words], device=self._device)
        condition = Condition(ids, torch.ones_like(ids, dtype=torch.bool))
        return Encoded(condition, (0,) * len(prompts), tokens=tuple(read for _, read in words))

    def features(self, condition: Condition) -> Condition:
        """The model embeds the ids itself."""
        return condition
