"""LlamaGen's captions: cleaned twice, tokenised, through T5's encoder half, padded on the left.

The encoder and its tokenizer are those of `transformers`, read from the folder that `mulosd convert` checked and
hashed; weights come from safetensors files only.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mulosd.families.card import Card
from mulosd.models.condition import Condition
from mulosd.text.caption_clean import clean
from mulosd.text.encoder import Encoded
from mulosd.text.hf import load_model, load_tokenizer
from mulosd.types import PromptTokens


class T5:
    """Captions -> features [B, T, C], T the prefix of the image model; padded rows are zero and masked."""

    def __init__(self, card: Card, *, device: str, dtype: str) -> None:
        self._card, self._device, self._dtype = card, device, dtype
        self._name = next(iter(card.encoders))

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """Seeds do not matter. A caption is cut at T tokens, its end token included."""
        captions = [clean(prompt) for prompt in prompts]
        tokens = self._tokenizer(
            captions,
            max_length=self._card.prefix_len,
            padding="max_length",
            padding_side="right",
            truncation=True,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            features = self._model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        condition = left_padded(features, tokens.attention_mask.bool())
        return Encoded(condition, (0,) * len(prompts), tokens=tuple(map(self._read, captions)))

    def _read(self, caption: str) -> PromptTokens:
        """What T tokens hold of a cleaned caption, without its end token and a blank that stands alone."""
        ids = self._tokenizer(caption, add_special_tokens=False, verbose=False).input_ids
        unknown, blank = self._tokenizer.unk_token_id, self._tokenizer.convert_tokens_to_ids("▁")
        kept = ids[: self._card.prefix_len - 1]
        known = sum(token not in (unknown, blank) for token in kept)
        return PromptTokens(known, ids.count(unknown), len(ids) - len(kept))

    def features(self, condition: Condition) -> Condition:
        """The model projects the features itself."""
        return condition

    @cached_property
    def _model(self) -> Any:
        return load_model("T5EncoderModel", self._card, self._name, device=self._device, dtype=self._dtype)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer("T5Tokenizer", self._card, self._name)


def left_padded(features: Tensor, mask: Tensor) -> Condition:
    """Features [B, T, C] whose valid rows come first, mask [B, T] -> the same rows in order, after rows of zeros."""
    length = features.shape[1]
    first = length - mask.sum(1, keepdim=True)
    source = (torch.arange(length, device=mask.device) - first) % length
    moved = features.gather(1, source[..., None].expand_as(features))
    mask = mask.flip(1)
    return Condition(moved * mask[..., None], mask)
