"""GenEval's 553 prompts (djghosh13/geneval af4902f, prompts/create_prompts.py), regenerated exactly or from a file.

Line i (from 0) has the id `%05d`, as upstream's image folders do.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.files.reading import parse_json
from mulosd.prompts.base import check_keys, read_lines, required_path
from mulosd.scenes.vocabulary import plural
from mulosd.types import GENEVAL_TASKS, Prompt

WHAT = "GenEval's evaluation_metadata.jsonl"
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = ("zero", "one", "two", "three", "four")

# COCO's 80 classes in detector order, three of them renamed so that prompts read naturally.
_OBJECT_LIST = """
    person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
    parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
    handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
    surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
    broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv,
    laptop, computer mouse, tv remote, computer keyboard, cell phone, microwave, oven, toaster, sink, refrigerator,
    book, clock, vase, scissors, teddy bear, hair drier, toothbrush
"""
OBJECTS = tuple(name.strip() for name in _OBJECT_LIST.split(","))

SEED = 43
NUM_DRAWS = 100

# sha256 of upstream's evaluation_metadata.jsonl: numpy does not promise its random streams for ever.
METADATA_SHA256 = "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13"

_TOP_KEYS = ("tag", "include", "exclude", "prompt")
_CLAUSE_KEYS = ("class", "count", "color", "position")

Row = dict[str, Any]


KEYS = ("path",)


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: path (optional; without it upstream's file is regenerated).

    metadata: the line's tag, include and exclude. Raises EnvironmentProblem when numpy generates other prompts than
    upstream did, DataError naming file and line when a line is not of upstream's form.
    """
    check_keys(spec, KEYS)
    if spec.get("path") is None:
        return [_prompt(i, row) for i, row in enumerate(_regenerated())]
    path = required_path(spec, WHAT)
    lines = read_lines(path, WHAT)
    if lines and not lines[-1]:
        lines.pop()
    return [_prompt(i, _parsed(line, f"{path}:{i + 1}")) for i, line in enumerate(lines)]


def generate(seed: int = SEED, num_draws: int = NUM_DRAWS) -> list[Row]:
    """Metadata rows in upstream's order and key order; exact duplicates are dropped, the first one stays.

    All draws come from one generator, so their order is part of the benchmark.
    """
    rng = np.random.default_rng(seed)
    drawn = [
        *_single_object(rng),
        *_two_object(rng, num_draws),
        *_counting(rng, num_draws),
        *_colors(rng, num_draws),
        *_position(rng, num_draws),
        *_color_attr(rng, num_draws),
    ]
    return list({json.dumps(row): row for row in drawn}.values())


def metadata_text(rows: list[Row]) -> str:
    """The file that holds the rows: one JSON object a line, a newline at the end."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def _regenerated() -> list[Row]:
    rows = generate()
    if hashlib.sha256(metadata_text(rows).encode()).hexdigest() != METADATA_SHA256:
        raise EnvironmentProblem(
            f"prompts geneval: numpy {np.__version__} generates other prompts than upstream's file; "
            f"give path = {WHAT}, or install numpy 2.4.6, which is known to generate the same."
        )
    return rows


def _prompt(index: int, row: Row) -> Prompt:
    metadata = {key: value for key, value in row.items() if key != "prompt"}
    return Prompt("geneval", f"{index:05d}", row["prompt"], metadata)


def _single_object(rng: np.random.Generator) -> Iterator[Row]:
    for index in rng.choice(len(OBJECTS), size=len(OBJECTS), replace=False):
        name = OBJECTS[index]
        yield _row("single_object", [_clause(name)], f"a photo of {_with_article(name)}")


def _two_object(rng: np.random.Generator, num: int) -> Iterator[Row]:
    for _ in range(num):
        a, b = (OBJECTS[i] for i in rng.choice(len(OBJECTS), size=2, replace=False))
        text = f"a photo of {_with_article(a)} and {_with_article(b)}"
        yield _row("two_object", [_clause(a), _clause(b)], text)


def _counting(rng: np.random.Generator, num: int) -> Iterator[Row]:
    for _ in range(num):
        name = OBJECTS[rng.choice(len(OBJECTS))]
        count = int(rng.integers(2, 4, endpoint=True))
        row = _row("counting", [_clause(name, count)], f"a photo of {NUMBERS[count]} {plural(name)}")
        yield {
            "tag": row["tag"],
            "include": row["include"],
            "exclude": [_clause(name, count + 1)],
            "prompt": row["prompt"],
        }


def _colors(rng: np.random.Generator, num: int) -> Iterator[Row]:
    for _ in range(num):
        name = OBJECTS[_after_person(rng.choice(len(OBJECTS) - 1))]
        color = COLORS[rng.choice(len(COLORS))]
        yield _row("colors", [{**_clause(name), "color": color}], f"a photo of {_with_article(color)} {name}")


def _position(rng: np.random.Generator, num: int) -> Iterator[Row]:
    for _ in range(num):
        subject, anchor = (OBJECTS[i] for i in rng.choice(len(OBJECTS), size=2, replace=False))
        relation = RELATIONS[rng.choice(len(RELATIONS))]
        clauses = [_clause(anchor), {**_clause(subject), "position": [relation, 0]}]
        yield _row("position", clauses, f"a photo of {_with_article(subject)} {relation} {_with_article(anchor)}")


def _color_attr(rng: np.random.Generator, num: int) -> Iterator[Row]:
    for _ in range(num):
        a, b = (OBJECTS[_after_person(i)] for i in rng.choice(len(OBJECTS) - 1, size=2, replace=False))
        color_a, color_b = (COLORS[i] for i in rng.choice(len(COLORS), size=2, replace=False))
        clauses = [{**_clause(a), "color": color_a}, {**_clause(b), "color": color_b}]
        yield _row("color_attr", clauses, f"a photo of {_with_article(color_a)} {a} and {_with_article(color_b)} {b}")


def _row(tag: str, include: list[Row], prompt: str) -> Row:
    return {"tag": tag, "include": include, "prompt": prompt}


def _clause(name: str, count: int = 1) -> Row:
    return {"class": name, "count": count}


def _after_person(draw: int) -> int:
    """Noun index of a draw that leaves out "person", the first object: people have no colour."""
    return int(draw) + 1


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _parsed(line: str, where: str) -> Row:
    """A metadata row of upstream's form; raises DataError at `where` (file:line)."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); give {WHAT}.") from error
    problem = _row_problem(row)
    if problem:
        raise DataError(f"{where}: {problem}; give {WHAT}.")
    return dict(row)


def _row_problem(row: Any) -> str:
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}, allowed is an object"
    unknown = sorted(set(row) - set(_TOP_KEYS))
    if unknown:
        return f"unknown key {unknown[0]!r}, allowed are {', '.join(_TOP_KEYS)}"
    if row.get("tag") not in GENEVAL_TASKS:
        return f"tag = {row.get('tag')!r} is unknown, allowed are {', '.join(GENEVAL_TASKS)}"
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        return f"prompt = {row.get('prompt')!r} must be a string"
    include, exclude = row.get("include"), row.get("exclude", [])
    if not isinstance(include, list) or not include or not isinstance(exclude, list):
        return "include must be a list of at least one clause, and exclude a list"
    for i, clause in enumerate(include):
        problem = _clause_problem(clause, i)
        if problem:
            return f"include[{i}]: {problem}"
    return next((f"exclude[{i}]: {p}" for i, clause in enumerate(exclude) if (p := _clause_problem(clause, 0))), "")


def _clause_problem(clause: Any, num_earlier: int) -> str:
    """num_earlier: clauses before this one, which a position may refer to."""
    if not isinstance(clause, dict) or set(clause) - set(_CLAUSE_KEYS):
        return f"{clause!r} must be an object with the keys {', '.join(_CLAUSE_KEYS)}"
    if not isinstance(clause.get("class"), str) or not clause["class"]:
        return f"class = {clause.get('class')!r} must be a string"
    count = clause.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return f"count = {count!r} must be a positive integer"
    if "color" in clause and clause["color"] not in COLORS:
        return f"color = {clause['color']!r} is unknown, allowed are {', '.join(COLORS)}"
    if "position" not in clause:
        return ""
    match clause["position"]:
        case [str(relation), int(target)] if relation in RELATIONS and 0 <= target < num_earlier:
            return ""
    return f"position = {clause['position']!r} is not [relation, index of an earlier clause]"
