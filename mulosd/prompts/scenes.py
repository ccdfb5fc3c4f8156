"""Prompts of the procedural scenes world, which the `tiny` family is trained on (ids `<split>-<index>`)."""

from collections.abc import Mapping
from typing import Any

from mulosd.prompts.base import check_keys, whole_number
from mulosd.types import Prompt

KEYS = ("split", "count", "seed")


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: split (val, test or heldout; default val), count (default 96), seed (default 0).

    metadata: GenEval's tag, include and exclude; a clause may carry "pattern".
    """
    from mulosd.scenes.world import sample_prompts

    check_keys(spec, KEYS)
    split = str(spec.get("split", "val"))
    count = whole_number(spec, "count", default=96, low=1)
    seed = whole_number(spec, "seed", default=0, low=0)
    assert count is not None
    assert seed is not None
    drawn = sample_prompts(split, count, seed)
    return [Prompt("scenes", f"{split}-{i:05d}", text, metadata) for i, (text, metadata) in enumerate(drawn)]
