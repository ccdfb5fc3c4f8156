"""Classes by number, for class-conditional models: the prompt `class:207` is class 207 of ImageNet's 1,000.

The names of classes are not part of this project; numbers are those of the training set, counted from 0.
"""

import re
from collections.abc import Mapping
from typing import Any

from mulosd.errors import ConfigError
from mulosd.prompts.base import check_keys
from mulosd.types import Prompt

KEYS = ("ids",)
NUM_CLASSES = 1000  # of ImageNet


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: ids (class numbers, default all 1,000); with `images_per_prompt` each class gives several images."""
    where = check_keys(spec, KEYS)
    ids = spec.get("ids", range(NUM_CLASSES))
    if not isinstance(ids, list | range) or not all(type(i) is int and i in range(NUM_CLASSES) for i in ids):
        raise ConfigError(f"{where}: ids = {ids!r} is not allowed; give a list of numbers from 0 to {NUM_CLASSES - 1}.")
    return [Prompt("classes", str(i), f"class:{i}", {"class_id": i}) for i in ids]


def class_of(text: str, num_classes: int) -> int:
    """The class that a prompt names; ConfigError for any other text and for a class the model does not have."""
    match = re.fullmatch(r"class:(\d{1,9})", text.strip())
    if match and int(match[1]) < num_classes:
        return int(match[1])
    raise ConfigError(
        f"prompt {text!r} is not one of the model's {num_classes} classes; write class:0 to class:{num_classes - 1}, "
        "in a sweep the prompt set `classes`."
    )
