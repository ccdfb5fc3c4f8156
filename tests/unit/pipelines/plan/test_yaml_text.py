"""YAML 1.2 as sweeps use it: what each word means, and one line for whatever has no meaning."""

import math
from typing import Any

import pytest

from pipelines.plan.yaml_text import parse_yaml

VALUES: dict[str, Any] = {
    "1e-4": 1e-4,
    "1E5": 1e5,
    "-.5": -0.5,
    "0100": 100,
    "010": 10,
    "-017": -17,
    "089": 89,
    "0o10": 8,
    "0x1F": 31,
    "+1": 1,
    ".inf": math.inf,
    "yes": "yes",
    "no": "no",
    "on": "on",
    "off": "off",
    "1:30": "1:30",
    "true": True,
    "null": None,
    "~": None,
    "'010'": "010",
    "1.5.0": "1.5.0",
    "!!str 010": "010",
}


@pytest.mark.parametrize("text", VALUES)
def test_a_word_means_what_yaml_1_2_says(text: str) -> None:
    for found in (parse_yaml(text), parse_yaml(f"{{a: {text}}}")["a"]):
        assert found == VALUES[text]
        assert type(found) is type(VALUES[text])


def test_merge_keys_and_anchors() -> None:
    text = "base: &base {tau: 0.1, radius: 1}\nown: {<<: *base, radius: 2}\nagain: *base"
    assert parse_yaml(text)["own"] == {"tau": 0.1, "radius": 2}
    assert parse_yaml(text)["again"] == {"tau": 0.1, "radius": 1}


BOMB = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))])

REFUSED = {
    "a: 1\na: 2": 'line 2: the key "a" is given twice',
    "a: &a {x: 1}\nb: {<<: *a, <<: *a}": 'line 2: the key "<<" is given twice',
    "name: {{ exp }}": "line 1: a list or mapping as a key; quote text that begins with a bracket or brace",
    "{a: 1}: 2": "a list or mapping as a key",
    "? [a]\n: 2": "is not text; quote it",
    "1: a": "the key 1 is not text; quote it",
    'a:\n  b: !!int ""': "line 2: '' is not a value of !!int",
    'a: !!float "x"': "line 1: 'x' is not a value of !!float",
    'a: !!timestamp "x"': "line 1: failed to construct timestamp",
    'a: !!bool "maybe"': "line 1: 'maybe' is not a value of !!bool",
    "a: !!int [1]": "line 1: expected a scalar",
    "a: 2001-99-99": "is not a value of !!timestamp",
    "a: 2001-01-01": "'2001-01-01' is of type date; quote it where text is meant",
    "a: !!set {x}": "is of type set",
    "a: !!python/object:os.system x": "could not determine a constructor",
    'a: "\\0"': "holds the character '\\x00'",
    "a: \0": "unacceptable character #x0000",
    'a: "\\ud800"': "holds the character",
    "[" * 1000: "nested more than 64 levels deep",
    "a: " + "[" * 300 + "]" * 300: "nested more than 64 levels deep",
    "a: " + "[" * 80 + "]" * 80: "nested more than 64 levels deep",
    "\n".join("  " * i + "- " for i in range(600)): "nested more than 64 levels deep",
    "a: &a [*a]": "nested more than 64 levels deep",
    BOMB: "more than 100,000 items",
    "a: *x": "found undefined alias 'x'",
    "a: 1\n---\nb: 2": "expected a single document",
    "a: " + "9" * 5000: "is not a value of !!int",
}


@pytest.mark.parametrize("text", REFUSED, ids=[f"{text[:20]}" for text in REFUSED])
def test_whatever_else_is_one_line(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        parse_yaml(text)
    assert REFUSED[text] in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).isprintable()
