"""DPG-Bench's form over scenes: dense captions, and questions with parents in its five categories (ids `<split>-<i>`).

metadata["questions"]: one entry per question, in an order where parents come first, with the names of DPG's own table:
proposition_id (from 1), dependency (parent ids, [0] without any), tuple, question_natural_language. "include" has the
clauses that the detail metric reads; there is no GenEval tag, since dense captions are none of its tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mulosd.prompts.base import check_keys, whole_number
from mulosd.scenes.dense import sample_dense_scenes
from mulosd.scenes.vocabulary import COUNT_WORDS, plural

# The words and relations of the frozen captions, so that questions cannot disagree with them.
from mulosd.scenes.world import Scene, SceneObject, relation
from mulosd.types import Prompt

KEYS = ("split", "count", "seed")


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: split (val or test; default val), count (default 96), seed (default 0)."""
    check_keys(spec, KEYS)
    split = str(spec.get("split", "val"))
    count = whole_number(spec, "count", default=96, low=1)
    seed = whole_number(spec, "seed", default=0, low=0)
    assert count is not None
    assert seed is not None
    scenes = sample_dense_scenes(split, count, seed)
    return [
        Prompt("dpg_scenes", f"{split}-{i:05d}", scene.caption, scene_metadata(scene)) for i, scene in enumerate(scenes)
    ]


def scene_metadata(scene: Scene) -> dict[str, Any]:
    """Questions, clauses and the scene itself."""
    questions = _Questions()
    questions.ask([], f"global - (background, {scene.background})", f"Is the background {scene.background}?")
    if scene.tag == "counting":
        _ask_about_many(questions, scene.objects)
        first = scene.objects[0]
        include = [{"class": first.shape, "count": len(scene.objects), "color": first.color}]
    else:
        _ask_about_each(questions, scene.objects)
        include = [_clause(one) for one in scene.objects]
    return {"questions": questions.entries, "include": include, "scene": scene.to_json()}


class _Questions:
    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def ask(self, parents: Sequence[int], label: str, text: str) -> int:
        """Append a question; returns its id."""
        number = len(self.entries) + 1
        dependency = list(parents) or [0]
        names = ("proposition_id", "dependency", "tuple", "question_natural_language")
        self.entries.append(dict(zip(names, (number, dependency, label, text), strict=True)))
        return number


def _ask_about_many(questions: _Questions, objects: Sequence[SceneObject]) -> None:
    shape, color, count = objects[0].shape, objects[0].color, len(objects)
    shapes = plural(shape)
    entity = questions.ask([], f"entity - whole ({shapes})", f"Are there {shapes}?")
    questions.ask([entity], f"other - count ({shapes}, =={count})", f"Are there {COUNT_WORDS[count]} {shapes}?")
    questions.ask([entity], f"attribute - color ({shapes}, {color})", f"Are the {shapes} {color}?")


def _ask_about_each(questions: _Questions, objects: Sequence[SceneObject]) -> None:
    entities = []
    for one in objects:
        entity = questions.ask([], f"entity - whole ({one.shape})", f"Is there a {one.shape}?")
        entities.append(entity)
        questions.ask([entity], f"attribute - color ({one.shape}, {one.color})", f"Is the {one.shape} {one.color}?")
        if one.pattern:
            label = f"attribute - texture ({one.shape}, {one.pattern})"
            questions.ask([entity], label, f"Is the {one.shape} {one.pattern}?")
    if len(objects) == 2:
        a, b = objects
        side = relation(a, b)
        label = f"relation - spatial ({a.shape}, {b.shape}, {side})"
        questions.ask(entities, label, f"Is the {a.shape} {side} the {b.shape}?")


def _clause(one: SceneObject) -> dict[str, Any]:
    clause: dict[str, Any] = {"class": one.shape, "count": 1, "color": one.color}
    return {**clause, "pattern": one.pattern} if one.pattern else clause
