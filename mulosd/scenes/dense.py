"""Scenes whose captions name everything: looks, pattern, count, relation and background.

Built from the pieces of the frozen sampler, with random streams of their own, so that nothing of `world` changes.
Captions of two objects come from the hash bucket that no training caption falls into; the few hundred captions of one
object and of several equal ones are all trained on, as everywhere in this world. No caption comes twice.
"""

import numpy as np

from mulosd.errors import ConfigError, unknown_name
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.world import HASHED_TAGS, Scene, is_eval_caption, sample_scene

SPLITS = ("val", "test")

# In rotation: three captions in five name two objects.
FORMS = ("position", "counting", "position", "colors", "position")

# Apart from the streams of `world.SPLITS`.
_STREAM = 10

_LOOKS = len(voc.SHAPES) * len(voc.COLORS) - len(voc.HELD_OUT)
_FEWEST_CAPTIONS = _LOOKS * len(voc.BACKGROUNDS) * min(len(voc.COUNT_WORDS), 1 + len(voc.PATTERNS))
MAX_COUNT = _FEWEST_CAPTIONS * len(FORMS)


def sample_dense_scenes(split: str, count: int, seed: int) -> list[Scene]:
    """`count` scenes of a split with different captions; a smaller count gives the first of a larger one.

    Raises ConfigError for an unknown split and for a count that the captions do not last for.
    """
    if split not in SPLITS:
        raise unknown_name("dense scenes split", split, SPLITS)
    if not 1 <= count <= MAX_COUNT:
        raise ConfigError(f"dense scenes count = {count} is not allowed; give 1 to {MAX_COUNT}.")
    rng = np.random.default_rng([_STREAM + SPLITS.index(split), seed])
    scenes: list[Scene] = []
    captions: set[str] = set()
    while len(scenes) < count:
        tag = FORMS[len(scenes) % len(FORMS)]
        scene = sample_scene(rng, tag, dense=True, heldout=False)
        if scene.caption in captions or (tag in HASHED_TAGS and not is_eval_caption(scene.caption)):
            continue
        captions.add(scene.caption)
        scenes.append(scene)
    return scenes
