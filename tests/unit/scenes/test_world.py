"""The frozen scenes world: same seed same scene, splits that do not leak, labels that agree with the rules."""

import hashlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.geneval.rules import RELATIONS, relations
from mulosd.errors import ConfigError
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.render import coverage, render
from mulosd.scenes.words import encode_words, read_words
from mulosd.scenes.world import (
    HASHED_TAGS,
    SPLITS,
    Scene,
    SceneObject,
    sample_prompts,
    sample_scenes,
    sample_training_scene,
    scene_from_json,
    scene_metadata,
)
from mulosd.types import GENEVAL_TASKS, PromptTokens

# Of 60 scenes each: a change here means another world, and with it other weights (vocabulary.WORLD_VERSION).
FROZEN_SCENES = "7f5dda4fbeb153c504ae7e267bba49c5b247db03297618466e1e55034eb87d2f"
FROZEN_PIXELS = "3979c7b4a44b906d185d3da48448f5d920f3b8dc64d5e287d37c2d60e621c3b9"


def training_scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [sample_training_scene(rng) for _ in range(count)]


def box_of(obj: SceneObject) -> tuple[float, float, float, float]:
    return obj.cx - obj.half, obj.cy - obj.half, obj.cx + obj.half, obj.cy + obj.half


def scenes_digest() -> str:
    scenes = [scene for split in SPLITS for scene in sample_scenes(split, 60, 0)] + training_scenes(60)
    return hashlib.sha256(json.dumps([scene.to_json() for scene in scenes], sort_keys=True).encode()).hexdigest()


def pixels_digest() -> str:
    # Coarse grey levels: the last bit of a float may differ between machines.
    images = [render(scene, size) // 8 for scene in sample_scenes("val", 24, 0) for size in (32, 64)]
    return hashlib.sha256(b"".join(image.tobytes() for image in images)).hexdigest()


def test_world_is_frozen() -> None:
    assert voc.WORLD_VERSION == "scenes-1"
    assert scenes_digest() == FROZEN_SCENES


def test_rendering_is_frozen() -> None:
    assert pixels_digest() == FROZEN_PIXELS


def test_same_seed_same_scenes() -> None:
    assert sample_scenes("val", 12, 3) == sample_scenes("val", 12, 3)
    assert sample_scenes("val", 12, 3) != sample_scenes("val", 12, 4)
    assert sample_scenes("val", 12, 3) != sample_scenes("test", 12, 3)
    assert training_scenes(5, seed=1) == training_scenes(5, seed=1) != training_scenes(5, seed=2)


def test_a_longer_list_starts_with_the_shorter_one() -> None:
    assert sample_scenes("test", 30, 0)[:12] == sample_scenes("test", 12, 0)


def test_captions_of_training_and_evaluation_do_not_meet() -> None:
    trained = {scene.caption for scene in training_scenes(2500) if scene.tag in HASHED_TAGS}
    asked = {s.caption for split in SPLITS for s in sample_scenes(split, 300, 0) if s.tag in HASHED_TAGS}
    assert len(trained) > 100
    assert len(asked) > 100
    assert not trained & asked


def test_held_out_pairs_are_never_trained_and_always_asked_for() -> None:
    trained = {(obj.shape, obj.color) for scene in training_scenes(2500) for obj in scene.objects}
    assert trained == set(itertools.product(voc.SHAPES, voc.COLORS)) - voc.HELD_OUT
    for scene in sample_scenes("heldout", 60, 0):
        assert scene.tag in ("colors", "color_attr")
        named = {(clause["class"], clause["color"]) for clause in scene_metadata(scene)["include"]}
        assert named & voc.HELD_OUT


@pytest.mark.parametrize("split", ["val", "test"])
def test_tags_rotate_and_trained_pairs_only(split: str) -> None:
    scenes = sample_scenes(split, 60, 0)
    assert [scene.tag for scene in scenes] == list(GENEVAL_TASKS) * 10
    assert set(GENEVAL_TASKS) == set(GENEVAL_TASKS)
    assert not {(obj.shape, obj.color) for scene in scenes for obj in scene.objects} & voc.HELD_OUT


@pytest.mark.parametrize(("split", "count"), [("train", 3), ("val", 0)])
def test_bad_requests_are_refused(split: str, count: int) -> None:
    with pytest.raises(ConfigError, match=r"train|count = 0"):
        sample_scenes(split, count, 0)


def test_scene_survives_json() -> None:
    for caption, metadata in sample_prompts("test", 24, 1):
        scene = scene_from_json(json.loads(json.dumps(metadata["scene"])))
        assert scene.caption == caption
        assert scene_metadata(scene) == metadata


def test_metadata_relation_is_the_one_the_evaluator_sees() -> None:
    assert set(voc.RELATIONS) == set(RELATIONS)
    seen = set()
    for scene in sample_scenes("test", 600, 2):
        if scene.tag != "position":
            continue
        subject, anchor = scene.objects
        clauses = scene_metadata(scene)["include"]
        assert [clause["class"] for clause in clauses] == [anchor.shape, subject.shape]
        relation, target = clauses[1]["position"]
        assert target == 0
        assert relations(box_of(subject), box_of(anchor)) == (relation,)
        assert relations(box_of(anchor), box_of(subject)) != (relation,)
        assert f"{subject.shape} {relation} a" in scene.caption
        seen.add(relation)
    assert seen == set(RELATIONS)


def test_metadata_names_what_the_caption_names() -> None:
    for caption, metadata in sample_prompts("val", 120, 0):
        words = caption.split()
        for clause in metadata["include"]:
            assert clause["class"] in caption
            assert clause.get("color", words[0]) in words
            assert clause.get("pattern", words[0]) in words
        if metadata["tag"] == "counting":
            count = metadata["include"][0]["count"]
            assert voc.COUNT_WORDS[count] in words
            assert metadata["exclude"] == [{"class": metadata["include"][0]["class"], "count": count + 1}]
            assert len(metadata["scene"]["objects"]) == count
        else:
            assert "exclude" not in metadata


def test_objects_lie_inside_and_apart() -> None:
    for scene in training_scenes(500):
        for obj in scene.objects:
            x0, y0, x1, y1 = box_of(obj)
            assert min(x0, y0) >= 0
            assert max(x1, y1) <= 32
        for a, b in itertools.combinations(map(box_of, scene.objects), 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


objects = st.builds(
    SceneObject,
    shape=st.sampled_from(voc.SHAPES),
    color=st.sampled_from(sorted(voc.COLORS)),
    pattern=st.none(),
    cx=st.integers(10, 22),
    cy=st.integers(10, 22),
    half=st.integers(5, 10),
)


def with_pattern(obj: SceneObject, pattern: str) -> SceneObject:
    return SceneObject(obj.shape, obj.color, pattern, obj.cx, obj.cy, obj.half)


@settings(max_examples=20)
@given(obj=objects, pattern=st.sampled_from(voc.PATTERNS), background=st.sampled_from(sorted(voc.BACKGROUNDS)))
def test_pattern_is_lost_at_32_and_keeps_the_mean_above(obj: SceneObject, pattern: str, background: str) -> None:
    """At 32 pixels a pattern leaves no trace; at 64 and 128 it is there, and a 2- or 4-fold shrink removes it."""
    plain, drawn = (Scene("colors", background, (o,), "") for o in (obj, with_pattern(obj, pattern)))
    assert np.abs(render(plain, 32).astype(int) - render(drawn, 32)).max() <= 1
    for size in (64, 128):
        difference = render(drawn, size).astype(float) - render(plain, size)
        centres = (np.arange(size, dtype=np.float32) + 0.5) / size
        inside = coverage(obj, centres[None, :], centres[:, None], size) >= 1
        assert np.abs(difference[inside]).max() > 20
        factor = size // 32
        cells = difference.reshape(32, factor, 32, factor, 3).mean(axis=(1, 3))
        full = inside.reshape(32, factor, 32, factor).all(axis=(1, 3))
        # Two neighbouring cells hold one period, hence the mean over 2 x 2. Brightest and darkest tones clip at 0 and
        # 255 (colour 205 + shade 14 + stripe 50; 60 - 14 - dot 75), which moves a mean by up to 29 / 4 grey levels.
        assert full.any()
        pairs = (cells[:-1, :-1] + cells[1:, :-1] + cells[:-1, 1:] + cells[1:, 1:]) / 4
        whole = full[:-1, :-1] & full[1:, :-1] & full[:-1, 1:] & full[1:, 1:]
        assert np.abs(pairs[whole]).max(initial=0) <= 29 / 4 + 1


@settings(max_examples=25)
@given(obj=objects, size=st.sampled_from([32, 64, 96, 128]))
def test_coverage_has_the_area_of_the_shape(obj: SceneObject, size: int) -> None:
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    area = float(coverage(obj, centres[None, :], centres[:, None], size).sum()) * (32 / size) ** 2 / obj.half**2
    arm = round(0.36 * obj.half) / obj.half
    exact = {"circle": np.pi, "square": 4.0, "triangle": 2.0, "cross": 8 * arm - 4 * arm * arm}[obj.shape]
    assert area == pytest.approx(exact, rel=0.03)


def test_resolutions_show_the_same_scene() -> None:
    for scene in sample_scenes("val", 12, 0):
        plain = Scene(scene.tag, scene.background, tuple(with_pattern(o, None) for o in scene.objects), "")  # type: ignore[arg-type]
        low = render(plain, 32).astype(float)
        shrunk = render(plain, 128).astype(float).reshape(32, 4, 32, 4, 3).mean(axis=(1, 3))
        assert np.abs(low - shrunk).mean() < 1.0


def test_too_small_a_rendering_is_refused() -> None:
    with pytest.raises(ConfigError, match="render size = 4"):
        render(sample_scenes("val", 1, 0)[0], 4)


def test_every_caption_is_known_and_fits() -> None:
    scenes = training_scenes(500) + [scene for split in SPLITS for scene in sample_scenes(split, 120, 0)]
    for scene in scenes:
        ids = encode_words(scene.caption)
        assert len(ids) == voc.MAX_WORDS
        assert voc.UNKNOWN_ID not in ids
        assert ids[-1] != voc.PAD_ID
        assert ids == sorted(ids, key=lambda i: i != voc.PAD_ID)


def test_words_keep_order_plurals_and_case() -> None:
    ids = voc.WORD_IDS
    assert encode_words("A photo of two Crosses.") == [0] * 9 + [ids["two"], ids["cross"], ids["s"]]
    expected = [ids[word] for word in ("red", "circle", "left", "striped", "square")]
    assert encode_words("a red circle left of a striped square")[-5:] == expected
    assert encode_words("a red circle and a blue square") != encode_words("a blue circle and a red square")


@pytest.mark.parametrize(
    ("caption", "read"),
    [
        ("a photo of a red circle", PromptTokens(2)),
        ("two circles", PromptTokens(3)),  # the plural is a token of its own
        ("a red giraffe", PromptTokens(1, unknown=1)),
        ("", PromptTokens(0)),
        ("кот и 猫", PromptTokens(0, unknown=3)),
        ("red café", PromptTokens(1, unknown=1)),
        ("red " * 15 + "giraffe", PromptTokens(12, unknown=1, cut=4)),
    ],
)
def test_what_is_read_of_a_caption(caption: str, read: PromptTokens) -> None:
    ids, found = read_words(caption)
    assert found == read
    assert ids == encode_words(caption)
    assert len(ids) == voc.MAX_WORDS


def test_unknown_words_stay() -> None:
    assert encode_words("a red giraffe")[-2:] == [voc.WORD_IDS["red"], voc.UNKNOWN_ID]
    assert encode_words("")[-1] == encode_words("猫")[-1] == voc.UNKNOWN_ID


def test_empty_and_long_captions() -> None:
    assert encode_words("") == [0] * (voc.MAX_WORDS - 1) + [voc.UNKNOWN_ID]
    assert encode_words("a photo of a") == encode_words("")
    assert encode_words("red " * 30) == [voc.WORD_IDS["red"]] * voc.MAX_WORDS
