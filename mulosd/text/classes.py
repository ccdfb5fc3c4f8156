"""Class prompts of LlamaGen's class-to-image models: the model looks the class up, so nothing is staged."""

from collections.abc import Sequence

import torch

from mulosd.models.condition import Condition
from mulosd.prompts.classes import class_of
from mulosd.text.encoder import Encoded


class Classes:
    """Prompts such as `class:207` -> class ids [B, 1]."""

    def __init__(self, num_classes: int, device: str) -> None:
        self._num_classes, self._device = num_classes, device

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """Seeds do not matter. ConfigError for a prompt that names no class."""
        ids = torch.tensor([[class_of(prompt, self._num_classes)] for prompt in prompts], device=self._device)
        return Encoded(Condition(ids, torch.ones_like(ids, dtype=torch.bool)), (0,) * len(prompts))

    def features(self, condition: Condition) -> Condition:
        """The model embeds the ids itself."""
        return condition
