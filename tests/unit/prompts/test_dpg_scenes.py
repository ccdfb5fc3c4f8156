"""Dense scene prompts: stable, distinct, outside training, in known words; questions that fit the captions."""

import hashlib

import numpy as np
import pytest

from evaluators.dpg import parse_questions
from mulosd.errors import ConfigError
from mulosd.prompts import load_prompts, prompt_list_hash
from mulosd.scenes import dense
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.words import encode_words
from mulosd.scenes.world import sample_training_scene
from mulosd.types import Prompt

PROMPTS = load_prompts({"name": "dpg_scenes", "count": 200})

# Results of different days compare only while this list is the same.
FROZEN = "8bcc83430806f7df26ba61db82fc7414f649c2d1f205306fb9c0ebe9bf5984d7"


def captions(**spec: object) -> list[str]:
    return [prompt.text for prompt in load_prompts({"name": "dpg_scenes", **spec})]


def test_the_list_is_frozen() -> None:
    assert PROMPTS[0].prompt_id == "val-00000"
    assert PROMPTS[0].text == "a photo of a blue square left of a striped green triangle on a beige background"
    assert prompt_list_hash(PROMPTS) == FROZEN


def test_smaller_counts_are_prefixes_and_splits_differ() -> None:
    assert captions(count=30) == [prompt.text for prompt in PROMPTS[:30]]
    assert captions(count=30) != captions(count=30, seed=1) != captions(count=30, split="test")
    assert [p.prompt_id for p in load_prompts({"name": "dpg_scenes", "split": "test", "count": 2})] == [
        "test-00000",
        "test-00001",
    ]


def test_no_caption_twice_and_none_of_two_objects_from_training() -> None:
    texts = [prompt.text for prompt in PROMPTS]
    assert len(set(texts)) == len(texts)
    pairs = {p.text for p in PROMPTS if p.metadata["scene"]["tag"] == "position"}
    assert len(pairs) == 120
    assert {hashlib.sha256(text.encode()).digest()[0] % 5 for text in pairs} == {0}
    rng = np.random.default_rng(0)
    assert pairs.isdisjoint(sample_training_scene(rng).caption for _ in range(3000))


def test_the_largest_list_exists_and_a_larger_one_is_refused() -> None:
    texts = captions(count=dense.MAX_COUNT)
    assert len(set(texts)) == len(texts) == 1020
    with pytest.raises(ConfigError, match="give 1 to 1020"):
        captions(count=1021)
    with pytest.raises(ConfigError, match="unknown dense scenes split 'heldout'"):
        captions(split="heldout")
    with pytest.raises(ConfigError, match="'count'"):
        captions(coun=3)


def test_the_family_knows_every_word() -> None:
    for prompt in PROMPTS:
        ids = encode_words(prompt.text)
        assert voc.UNKNOWN_ID not in ids
        assert len(prompt.text.split()) < 20


def questions_of(prompt: Prompt) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for question in parse_questions(prompt.metadata["questions"], prompt.prompt_id):
        found.setdefault(question.detail, []).append(question.text)
    return found


def test_questions_cover_the_caption_and_nothing_else() -> None:
    for prompt in PROMPTS:
        asked = questions_of(prompt)
        words = {w for texts in asked.values() for text in texts for w in text.strip("?").split()}
        silent = {"a", "photo", "of", "on", "Is", "Are", "the", "there", "background"}
        assert words - silent == set(prompt.text.split()) - silent
        objects = prompt.metadata["scene"]["objects"]
        num = 1 if prompt.metadata["scene"]["tag"] == "counting" else len(objects)
        assert len(asked["global"]) == 1
        assert len(asked["entity - whole"]) == len(asked["attribute - color"]) == num
        assert len(asked.get("attribute - texture", [])) == sum(one["pattern"] is not None for one in objects)
        assert ("relation - spatial" in asked) == (num == 2)
        assert ("other - count" in asked) == (len(objects) > num)


def test_parents_come_first_and_are_entities() -> None:
    for prompt in PROMPTS:
        asked = parse_questions(prompt.metadata["questions"], prompt.prompt_id)
        assert [question.id for question in asked] == list(range(1, len(asked) + 1))
        by_id = {question.id: question for question in asked}
        for question in asked:
            assert all(parent < question.id and by_id[parent].category == "entity" for parent in question.parents)
            assert bool(question.parents) == (question.category in ("attribute", "relation", "other"))
            assert len(question.parents) == (2 if question.category == "relation" else len(question.parents[:1]))


def test_all_five_categories_have_questions() -> None:
    counts = {name: sum(name in questions_of(p) for p in PROMPTS) for name in ("global", "other - count")}
    assert counts == {"global": 200, "other - count": 40}
    assert sum("attribute - texture" in questions_of(p) for p in PROMPTS) > 60
