"""Encoders: prompt and seed -> `Condition`. The registry; `mulosd.families.encoder_facts` is what a plan knows of them.

A target whose card names `encoders` is conditioned by a network of its own (T5, Tar's LLM): encoding is a stage, and
its results are kept (`mulosd.stage.conditions`). The words of tiny and the classes of class-conditional models are
table look-ups, done where they are needed.
"""

from importlib import import_module

from mulosd.errors import unknown_name
from mulosd.families.card import Card
from mulosd.text.encoder import Encoder

# Architecture of a target's first encoder -> its class, called as cls(card, device=..., dtype=...).
ENCODERS = {"t5": "mulosd.text.t5:T5", "tar-llm": "mulosd.text.tar_llm:TarLLM"}


def build_encoder(card: Card, *, device: str, dtype: str) -> Encoder:
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
