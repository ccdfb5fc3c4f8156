"""YAML 1.2 as sweep files and `--set` use it: text, numbers, true, false, null, lists and mappings.

The version matters: in 1.1, which most readers follow, `010` is eight, `no` is false and `1e-4` is text. Merge keys
are allowed; a key given twice is not.
"""

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node

from mulosd.files.reading import MAX_DEPTH, check_nesting

MAX_ITEMS = 100_000  # aliases of aliases grow a short text without bound
_BAD_TEXT = re.compile("[\0\ud800-\udfff]")


def parse_yaml(text: str) -> Any:
    """The value of a YAML document; ValueError with a reason of one line for whatever a sweep has no use for."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.max_depth = MAX_DEPTH
    try:
        value = yaml.load(text)
    except (RecursionError, MaxDepthExceededError):
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    except MarkedYAMLError as error:
        raise ValueError(_reason(error)) from error
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    check_nesting(value, MAX_ITEMS)
    _check_kinds(value)
    return value


class _Constructor(SafeConstructor):  # type: ignore[misc]
    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            kind = str(node.tag).rpartition(":")[2]
            raise ConstructorError(
                None, None, f"{str(node.value)[:40]!r} is not a value of !!{kind}", node.start_mark
            ) from error


def _reason(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context).split())
    if problem.startswith("but "):
        problem = f"{error.context} {problem}"
    if "unhashable key" in problem:
        problem = "a list or mapping as a key; quote text that begins with a bracket or brace"
    if isinstance(error, DuplicateKeyError):
        problem = re.sub(r"^found duplicate (?:merge )?key (\".*?\").*", r"the key \1 is given twice", problem)
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _check_kinds(value: Any) -> None:
    """ValueError unless the value is made of what the module names, its keys of text."""
    match value:
        case None | bool() | int() | float():
            pass
        case str():
            if found := _BAD_TEXT.search(value):
                raise ValueError(f"{value[:40]!r} holds the character {found[0]!r}, which no setting can")
        case list():
            for item in value:
                _check_kinds(item)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} is not text; quote it")
                _check_kinds(key)
                _check_kinds(item)
        case _:
            raise ValueError(f"{str(value)[:40]!r} is of type {type(value).__name__}; quote it where text is meant")
