"""Tar's first stage: a Qwen2 LLM samples TA-Tok ids for a prompt, TA-Tok turns them into features.

The prompt is the chat template of the files with the task's image tags after it. Each id is sampled with noise keyed by
(seed, stream `condition`, index), so it does not depend on its batch. The LLM may stop early or produce words:
only `<I...>` tokens count, and what is missing is filled with id 0, as in the reference. Unlike there, image tokens
that a prompt spells out are not taken for sampled ones, and no repetition penalty is applied.
"""

import logging
import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mulosd.errors import DataError
from mulosd.families.card import Card
from mulosd.families.encoder_facts import condition_len, condition_sampler
from mulosd.models.condition import Condition
from mulosd.sampling.filters import Sampler, draw
from mulosd.sampling.finite import largest
from mulosd.text.encoder import Encoded
from mulosd.text.hf import load_model, load_tokenizer
from mulosd.types import PromptTokens

log = logging.getLogger(__name__)

SYSTEM = "You are a helpful assistant."
IMAGE_START = "<im_start>"  # not the chat's <|im_start|>


class TarLLM:
    """Prompts -> ids [B, T] of TA-Tok -> features [B, T, C]. The card's encoders are the LLM and TA-Tok."""

    def __init__(self, card: Card, *, device: str, dtype: str) -> None:
        self._card, self._device, self._dtype = card, device, dtype
        self._llm, self._ta_tok = card.encoders
        self._sampler = Sampler(**condition_sampler(card))
        self._scale = int(card.condition.get("scale", 0))
        self._side = math.isqrt(condition_len(card))

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        """Ids [B, T], all valid; T is 729, 169 or 81 at the scales 0, 1, 2 of the released models."""
        drawn, is_finite = self._generate(prompts, torch.tensor(list(seeds), dtype=torch.int64, device=self._device))
        found = [self._image_ids[tokens] for tokens in drawn.cpu()]
        length = self._side**2
        ids = torch.zeros(len(prompts), length, dtype=torch.int64)
        padded = []
        for b, row in enumerate(found):
            row = row[row >= 0][:length]
            ids[b, : len(row)] = row
            padded.append(length - len(row))
        ids = ids.to(self._device)
        failed = tuple((~is_finite).nonzero()[:, 0].tolist())
        read = (len(self._tokenizer(text, add_special_tokens=False).input_ids) for text in prompts)
        condition = Condition(ids, torch.ones_like(ids, dtype=torch.bool))
        # A byte-level vocabulary knows every text, and nothing is cut.
        return Encoded(condition, tuple(padded), failed, tuple(PromptTokens(num) for num in read))

    def features(self, condition: Condition) -> Condition:
        """TA-Tok's features of the ids."""
        with torch.inference_mode():
            return Condition(self._decoder.decode(condition.values), condition.mask)

    def _generate(self, prompts: Sequence[str], seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn tokens [B, at most T], and whether all logits of a prompt up to its end token were finite [B].

        Behind its end token a row repeats it.
        """
        tokens = self._tokenizer(
            [self._prompt(text) for text in prompts],
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        ).to(self._device)
        mask, fed, cache = tokens.attention_mask, tokens.input_ids, None
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=self._device)
        is_finite = ~ended
        drawn: list[Tensor] = []
        with torch.inference_mode():
            for index in range(self._side**2):
                out = self._model(
                    input_ids=fed,
                    attention_mask=mask,
                    position_ids=positions,
                    cache=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                is_finite &= ended | largest(out.logits[:, -1]).isfinite()
                where = torch.full_like(fed[:, :1], index)
                fed = draw(out.logits, self._sampler, seeds, where, stream="condition", grid=self._side)
                if drawn:
                    fed = torch.where(ended[:, None], drawn[-1], fed)
                drawn.append(fed)
                ended |= torch.isin(fed[:, 0], self._ends)
                if ended.all():
                    break
                cache, positions = out.cache, positions[:, -1:] + 1
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        return torch.cat(drawn, 1), is_finite

    def _prompt(self, text: str) -> str:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        chat: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return f"{chat}{IMAGE_START}<S{self._scale}>"

    @cached_property
    def _model(self) -> Any:
        model = load_model("Qwen2ForCausalLM", self._card, self._llm, device=self._device, dtype=self._dtype)
        penalty = model.generation_config.repetition_penalty
        if penalty not in (None, 1.0):
            log.warning(
                "%s: its generation_config.json asks for a repetition penalty of %s, which is not applied",
                self._card.target_id,
                penalty,
            )
        return model

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = load_tokenizer("Qwen2Tokenizer", self._card, self._llm)
        known = tokenizer.get_vocab()
        needed = (IMAGE_START, f"<S{self._scale}>", "<I0>")
        if missing := [token for token in needed if token not in known]:
            raise DataError(
                f"{self._card.folder / self._llm}: the tokenizer has no {', '.join(missing)}; "
                "give the folder of Tar's LLM, not of the Qwen model it was made from."
            )
        if not tokenizer.chat_template:
            raise DataError(f"{self._card.folder / self._llm}: no chat template; restore the tokenizer's files.")
        return tokenizer

    @cached_property
    def _image_ids(self) -> Tensor:
        """Token -> TA-Tok id, -1 for other tokens."""
        table = torch.full((self._model.config.vocab_size,), -1, dtype=torch.int64)
        for token, index in self._tokenizer.get_vocab().items():
            if match := re.fullmatch(r"<I(\d+)>", token):
                table[index] = int(match[1])
        return table

    @cached_property
    def _ends(self) -> Tensor:
        """The tokens that end an answer: those of generation_config.json, or the tokenizer's."""
        stated = self._model.generation_config.eos_token_id
        ends = self._tokenizer.eos_token_id if stated is None else stated
        return torch.tensor(ends, device=self._device).reshape(-1)

    @cached_property
    def _decoder(self) -> Any:
        from mulosd.models.architectures import DTYPES, load_part

        dtype = self._card.encoders[self._ta_tok].get("compute_dtype", self._dtype)
        part = load_part(self._card, self._ta_tok, DTYPES[dtype])
        return part.to(self._device)
