"""Prompt sets with stable ids: scenes in GenEval's and in DPG's form, GenEval, COCO captions, DPG-Bench, classes.

Other packages add theirs by the entry points `mulosd.prompts`. No torch, no model, no drawing of images.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from mulosd.errors import ConfigError, DataError, unknown_name
from mulosd.prompts.base import check_text, prompt_list_hash
from mulosd.registry import Registry
from mulosd.types import Prompt

__all__ = ["PROMPT_SETS", "load_prompts", "prompt_list_hash"]


class PromptSet(Protocol):
    """What an entry of PROMPT_SETS is, such as a module: the keys that its setting has beside `name`, and its prompts.

    The keys are known without reading anything, so that a sweep is checked first.
    """

    KEYS: tuple[str, ...]

    def load(self, spec: Mapping[str, Any], /) -> list[Prompt]:
        """The prompts in their order."""


def _problem(name: str, found: Any) -> str | None:
    return None if hasattr(found, "KEYS") and hasattr(found, "load") else "it does not have KEYS and load(spec)"


PROMPT_SETS: Registry[PromptSet] = Registry(
    "prompt set",
    "mulosd.prompts",
    {name: f"mulosd.prompts.{name}" for name in ("classes", "coco", "dpg", "dpg_scenes", "geneval", "scenes")},
    _problem,
)


def load_prompts(spec: Mapping[str, Any], *, limit: int | None = None) -> list[Prompt]:
    """The prompts that `spec` names, the first `limit` of them when given.

    spec: {"name": one of PROMPT_SETS, ...keys of that set's `load`}. Ids are unique and do not depend on `limit`.
    Raises ConfigError for an unknown set, key or value, DataError for a missing, broken or empty source.
    """
    name = spec.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"prompts: name = {name!r} is not allowed; give one of {', '.join(PROMPT_SETS)}.")
    if name not in PROMPT_SETS:
        raise unknown_name("prompt set", name, PROMPT_SETS, "prompts")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit = {limit} is too small; give at least 1 prompt, or none for all.")
    prompts = PROMPT_SETS[name].load(spec)
    if not prompts:
        raise DataError(f"prompts {name}: the set is empty; check its path and count.")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise DataError(f"prompts {name}: id {prompt.prompt_id!r} appears twice; ids must be unique in a set.")
        seen.add(prompt.prompt_id)
        for text in (prompt.text, json.dumps(prompt.metadata, ensure_ascii=False)):
            check_text(text, f"{spec.get('path', f'prompts {name}')}: prompt {prompt.prompt_id}")
    return prompts if limit is None else prompts[:limit]
