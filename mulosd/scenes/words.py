"""Caption -> word ids of the scenes world, left-padded."""

import re

from mulosd.scenes import vocabulary as voc
from mulosd.types import PromptTokens

_PLURALS = {voc.plural(shape): shape for shape in voc.SHAPES}


def encode_words(caption: str) -> list[int]:
    """Ids of at most MAX_WORDS words, padded on the left; unknown words get UNKNOWN_ID.

    An empty caption is one unknown word: something must be attended to.
    """
    return read_words(caption)[0]


def read_words(caption: str) -> tuple[list[int], PromptTokens]:
    """The ids of `encode_words`, and what was read of the caption."""
    ids: list[int] = []
    for word in re.findall(r"[a-z0-9]+", caption.lower()):
        if word in voc.SILENT_WORDS:
            continue
        stem = _PLURALS.get(word, word)
        ids.append(voc.WORD_IDS.get(stem, voc.UNKNOWN_ID))
        if stem != word:
            ids.append(voc.WORD_IDS["s"])
    kept = ids[: voc.MAX_WORDS]
    foreign = re.findall(r"\w+", re.sub(r"\w*[a-z0-9]\w*", "", caption.lower()))  # words of other scripts get no id
    unknown = ids.count(voc.UNKNOWN_ID) + len(foreign)
    read = PromptTokens(len(kept) - kept.count(voc.UNKNOWN_ID), unknown, len(ids) - len(kept))
    kept = kept or [voc.UNKNOWN_ID]
    return [voc.PAD_ID] * (voc.MAX_WORDS - len(kept)) + kept, read
