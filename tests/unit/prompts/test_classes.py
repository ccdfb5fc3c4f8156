"""Class prompts: one per number, the same text in a set and on the command line."""

from typing import Any

import pytest

from mulosd.errors import ConfigError, DataError
from mulosd.prompts import load_prompts
from mulosd.prompts.classes import class_of


def test_all_classes_or_those_named() -> None:
    every = load_prompts({"name": "classes"})
    assert [p.metadata["class_id"] for p in every] == list(range(1000))
    some = load_prompts({"name": "classes", "ids": [360, 7]})
    assert [(p.prompt_id, p.text) for p in some] == [("360", "class:360"), ("7", "class:7")]
    assert set(map(repr, some)) < set(map(repr, every))
    assert [class_of(p.text, 1000) for p in every] == list(range(1000))


@pytest.mark.parametrize("ids", [[1000], [-1], [True], ["7"], "7", 7])
def test_ids_that_are_no_classes(ids: Any) -> None:
    with pytest.raises(ConfigError, match=r"prompts classes: ids = .* is not allowed; give a list of numbers from 0"):
        load_prompts({"name": "classes", "ids": ids})


@pytest.mark.parametrize("ids", [[], [3, 3]])
def test_a_set_is_neither_empty_nor_doubled(ids: list[int]) -> None:
    with pytest.raises(DataError):
        load_prompts({"name": "classes", "ids": ids})


@pytest.mark.parametrize(
    "text", ["a red cat", "class:10", "class:-1", "class:", "class: 3", "Class:3", "class:3 cat", ""]
)
def test_a_text_that_names_no_class(text: str) -> None:
    with pytest.raises(ConfigError, match="is not one of the model's 10 classes; write class:0 to class:9, in a sweep"):
        class_of(text, 10)
