"""Caption -> word ids of the scenes world, left-padded."""

import logging
import re

from mulosd.scenes import vocabulary as voc

log = logging.getLogger(__name__)

_PLURALS = {shape + ("es" if shape.endswith("s") else "s"): shape for shape in voc.SHAPES}


def encode_words(caption: str, *, warn: bool = True) -> list[int]:
    """Ids of at most MAX_WORDS words, padded on the left; unknown words get UNKNOWN_ID (and a warning).

    An empty caption is one unknown word: something must be attended to.
    """
    ids: list[int] = []
    unknown: list[str] = []
    for word in re.findall(r"[a-z0-9]+", caption.lower()):
        if word in voc.SILENT_WORDS:
            continue
        stem = _PLURALS.get(word, word)
        ids.append(voc.WORD_IDS.get(stem, voc.UNKNOWN_ID))
        if stem != word:
            ids.append(voc.WORD_IDS["s"])
        if ids[-1] == voc.UNKNOWN_ID:
            unknown.append(word)
    if warn and unknown:
        log.warning("caption %r: words the tiny family does not know: %s", caption, ", ".join(unknown))
    ids = (ids or [voc.UNKNOWN_ID])[: voc.MAX_WORDS]
    return [voc.PAD_ID] * (voc.MAX_WORDS - len(ids)) + ids
