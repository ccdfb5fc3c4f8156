"""Prompt sets: exact regeneration, caption policies, stable ids, and one clear sentence for whatever is wrong."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.geneval import rules
from mulosd.errors import ConfigError, DataError, EnvironmentProblem, UserError
from mulosd.families.card import load_card
from mulosd.families.encoder_facts import check_prompts
from mulosd.prompts import geneval, load_prompts, prompt_list_hash, scenes
from mulosd.types import GENEVAL_TASKS, Prompt

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data beside the repository")

GOOD = {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"}


def coco_file(folder: Path, **changes: Any) -> Path:
    """Two images; the second has two captions of equal length and, like the real file, is listed first."""
    captions = [
        (9, 7, "zz zz"),
        (9, 3, " A  dog\nruns "),
        (9, 5, "aa aa"),
        (4, 8, "Short."),
        (4, 2, "Rather a long one."),
    ]
    data = {
        "images": [{"id": 9}, {"id": 4}],
        "annotations": [{"image_id": image, "id": key, "caption": text} for image, key, text in captions],
    }
    path = folder / "captions.json"
    path.write_text(json.dumps({**data, **changes}))
    return path


def texts(spec: dict[str, Any]) -> list[str]:
    return [prompt.text for prompt in load_prompts(spec)]


# GenEval


def test_geneval_is_upstreams_file_byte_for_byte() -> None:
    rows = geneval.generate()
    assert len(rows) == 553
    # The comparison with upstream's hash happens on loading; nothing is returned unless it holds.
    prompts = load_prompts({"name": "geneval"})
    assert [(p.prompt_id, p.text) for p in prompts[:1]] == [("00000", "a photo of a bench")]
    assert prompts[-1].prompt_id == "00552"
    assert [sum(p.metadata["tag"] == tag for p in prompts) for tag in GENEVAL_TASKS] == [80, 99, 80, 94, 100, 100]
    assert any(p.text == "a photo of an orange orange" for p in prompts)


@needs_data
def test_geneval_from_the_file_is_the_same_list() -> None:
    path = DATA / "geneval" / "evaluation_metadata.jsonl"
    assert geneval.metadata_text(geneval.generate()) == path.read_text()
    assert (DATA / "geneval" / "object_names.txt").read_text().split("\n")[:80] == list(geneval.OBJECTS)
    from_file = load_prompts({"name": "geneval", "path": str(path)})
    assert from_file == load_prompts({"name": "geneval"})
    assert prompt_list_hash(from_file) == prompt_list_hash(load_prompts({"name": "geneval"}))


def test_another_random_stream_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: real(seed + 1))
    assert len(geneval.generate()) == 555
    with pytest.raises(EnvironmentProblem, match="generates other prompts"):
        load_prompts({"name": "geneval"})


def test_prompts_and_rules_mean_the_same_tasks_and_relations() -> None:
    assert GENEVAL_TASKS == GENEVAL_TASKS
    assert geneval.RELATIONS == rules.RELATIONS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tag": ', r"not JSON"),
        ("", r"not JSON"),
        ("[]", r"a JSON list"),
        (json.dumps({**GOOD, "tags": 1}), r"unknown key 'tags'"),
        (json.dumps({**GOOD, "tag": "single"}), r"tag = 'single'"),
        (json.dumps({**GOOD, "prompt": " "}), r"prompt = ' '"),
        (json.dumps({**GOOD, "include": []}), r"at least one clause"),
        (json.dumps({**GOOD, "include": [{"class": "bench", "count": 0}]}), r"include\[0\]: count = 0"),
        (json.dumps({**GOOD, "include": [{"class": "", "count": 1}]}), r"include\[0\]: class"),
        (json.dumps({**GOOD, "include": [{"class": "bench", "count": 1, "colour": "red"}]}), r"include\[0\]"),
        (json.dumps({**GOOD, "include": [{"class": "bench", "count": 1, "color": "teal"}]}), r"color = 'teal'"),
        (json.dumps({**GOOD, "include": [{"class": "bench", "count": 1, "position": ["above", 0]}]}), r"position"),
        (json.dumps({**GOOD, "exclude": [{"class": "bench", "count": True}]}), r"exclude\[0\]: count"),
    ],
)
def test_a_broken_geneval_line_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n{json.dumps(GOOD)}\n")
    with pytest.raises(DataError, match=message) as caught:
        load_prompts({"name": "geneval", "path": str(path)})
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_good_geneval_file_of_our_own(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n")
    assert load_prompts({"name": "geneval", "path": path}) == [
        Prompt("geneval", "00000", GOOD["prompt"], {"tag": GOOD["tag"], "include": GOOD["include"]})
    ]


# COCO


def test_caption_policies(tmp_path: Path) -> None:
    spec = {"name": "coco", "path": str(coco_file(tmp_path))}
    assert texts(spec) == ["Rather a long one.", "A dog runs"]
    assert texts({**spec, "caption": "longest"}) == ["Rather a long one.", "A dog runs"]
    (first, second) = load_prompts(spec)
    assert (first.prompt_id, second.prompt_id) == ("4", "9")
    assert second.metadata == {
        "image_id": 9,
        "annotation_id": 3,
        "caption_policy": "first",
        "raw": " A  dog\nruns ",
    }
    drawn = {tuple(texts({**spec, "caption": "random", "seed": seed})) for seed in range(20)}
    assert len(drawn) > 3
    assert texts({**spec, "caption": "random", "seed": 3}) == texts({**spec, "caption": "random", "seed": 3})


def test_random_captions_need_a_seed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a seed"):
        load_prompts({"name": "coco", "path": str(coco_file(tmp_path)), "caption": "random"})


@needs_data
def test_coco_val2017() -> None:
    spec = {"name": "coco", "path": str(DATA / "coco" / "captions_val2017.json")}
    prompts = load_prompts(spec)
    assert len(prompts) == 5000
    assert [int(p.prompt_id) for p in prompts] == sorted(int(p.prompt_id) for p in prompts)
    assert np.mean([len(p.text.split()) for p in prompts]) == pytest.approx(10.4, abs=0.05)
    assert len({p.text for p in prompts}) > 4900
    longest = load_prompts({**spec, "caption": "longest"})
    assert np.mean([len(p.text.split()) for p in longest]) == pytest.approx(12.8, abs=0.05)
    fifty = load_prompts({**spec, "count": 50, "seed": 0})
    hundred = load_prompts({**spec, "count": 100, "seed": 0})
    assert {p.prompt_id for p in fifty} < {p.prompt_id for p in hundred}
    assert fifty != load_prompts({**spec, "count": 50, "seed": 1})
    assert load_prompts({**spec, "count": 50}) == prompts[:50]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": None}, "lacks the lists"),
        ({"images": [{"id": 9}, {"id": 9}, {"id": 4}]}, r"images\[1\]: image id 9 appears twice"),
        ({"images": [{"id": 9}]}, r"annotations\[3\]: image_id 4"),
        ({"images": [{"id": 9}, {"id": 4}, {"id": 5}]}, "image 5 has no caption"),
        ({"images": [{"id": "9"}]}, r"images\[0\]: id = '9'"),
        ({"annotations": [{"image_id": 9, "id": 1, "caption": " \n"}]}, r"annotations\[0\]: the caption is empty"),
        ({"annotations": [{"image_id": 9, "id": 1}]}, r"annotations\[0\]: caption = None"),
    ],
)
def test_broken_coco_files(tmp_path: Path, changes: dict, message: str) -> None:
    path = coco_file(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load_prompts({"name": "coco", "path": str(path)})
    assert str(path) in str(caught.value)


def test_broken_json_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "captions.json"
    path.write_text('{"images": [],\n"annotations": [}')
    with pytest.raises(DataError, match=r"captions\.json:2: not JSON"):
        load_prompts({"name": "coco", "path": str(path)})


# DPG


@needs_data
def test_dpg_bench() -> None:
    prompts = load_prompts({"name": "dpg", "path": str(DATA / "dpg_bench" / "prompts")})
    assert len(prompts) == 1065
    assert all(p.text == p.text.strip() and p.text for p in prompts)
    assert "COCOval2014000000010363" in {p.prompt_id for p in prompts}


def test_dpg_files_that_cannot_be_prompts(tmp_path: Path) -> None:
    spec = {"name": "dpg", "path": str(tmp_path)}
    (tmp_path / "notes.md").write_text("no prompt")
    with pytest.raises(DataError, match=r"holds no \.txt file"):
        load_prompts(spec)
    (tmp_path / "a1.txt").write_text("  A bus. \n")
    assert load_prompts(spec) == [Prompt("dpg", "a1", "A bus.")]
    (tmp_path / "b.txt").write_bytes(b"fine\nbad \xff byte\n")
    with pytest.raises(DataError, match=r"b\.txt:2: not UTF-8"):
        load_prompts(spec)
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"b\.txt:1: the prompt is empty"):
        load_prompts(spec)
    (tmp_path / "b.txt").rename(tmp_path / ".hidden name.txt")
    (tmp_path / ".hidden name.txt").write_text("A bus.")
    with pytest.raises(DataError, match="cannot be a prompt id"):
        load_prompts(spec)


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a1.txt").write_bytes(b"\xef\xbb\xbfA bus.")
    assert load_prompts({"name": "dpg", "path": str(tmp_path)}) == [Prompt("dpg", "a1", "A bus.")]
    (tmp_path / "g.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert texts({"name": "geneval", "path": str(tmp_path / "g.jsonl")}) == [GOOD["prompt"]]
    coco = coco_file(tmp_path)
    before = texts({"name": "coco", "path": str(coco)})
    coco.write_bytes(b"\xef\xbb\xbf" + coco.read_bytes())
    assert texts({"name": "coco", "path": str(coco)}) == before


def test_half_a_surrogate_pair_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """JSON may spell one; it cannot be hashed, written or read by a tokenizer."""
    path = tmp_path / "g.jsonl"
    for row in ({**GOOD, "prompt": "a \ud83d bus"}, {**GOOD, "include": [{"class": "\ud83d", "count": 1}]}):
        path.write_text(json.dumps(row))
        with pytest.raises(DataError, match=rf"{path}: prompt 00000: '\\ud83d' at character \d+ is half of a pair"):
            load_prompts({"name": "geneval", "path": str(path)})
    path.write_text(json.dumps({**GOOD, "prompt": "a \U0001f68c bus"}))  # a whole pair
    assert texts({"name": "geneval", "path": str(path)}) == ["a \U0001f68c bus"]
    with pytest.raises(DataError, match=r"the prompt: '.*' at character 2 is half of a pair"):
        check_prompts(load_card("tiny-mid"), ["a\udcff"])


# Scenes


def test_scenes_are_stable_and_carry_what_the_evaluators_need() -> None:
    prompts = load_prompts({"name": "scenes", "split": "test", "count": 60, "seed": 3})
    assert [p.prompt_id for p in prompts[:2]] == ["test-00000", "test-00001"]
    assert {p.metadata["tag"] for p in prompts} == set(GENEVAL_TASKS)
    assert any("pattern" in clause for p in prompts for clause in p.metadata["include"])
    json.dumps([p.metadata for p in prompts])
    assert prompts == load_prompts({"name": "scenes", "split": "test", "count": 60, "seed": 3})
    assert prompts != load_prompts({"name": "scenes", "split": "test", "count": 60, "seed": 4})
    assert prompts[:30] == load_prompts({"name": "scenes", "split": "test", "count": 30, "seed": 3})
    assert len(load_prompts({"name": "scenes"})) == 96


# All sets


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "name = None"),
        ({"name": "genevel"}, "Did you mean 'geneval'"),
        ({"name": "geneval", "paht": "x"}, "Did you mean 'path'"),
        ({"name": "scenes", "split": "vall"}, "Did you mean 'val'"),
        ({"name": "scenes", "count": 0}, "count = 0"),
        ({"name": "scenes", "count": "96"}, "count = '96'"),
        ({"name": "scenes", "seed": True}, "seed = True"),
        ({"name": "scenes", "Count": 3}, "Did you mean 'count'"),
        ({"name": "coco"}, "path = None"),
        ({"name": "coco", "path": "x", "caption": "frist"}, "Did you mean 'first'"),
        ({"name": "dpg", "path": "x", "limit": 3}, "unknown key 'limit'"),
    ],
    ids=str,
)
def test_wrong_settings(spec: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(spec)


@pytest.mark.parametrize("name", ["coco", "dpg", "geneval"])
def test_missing_sources_are_one_sentence(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    with pytest.raises(DataError, match="no such") as caught:
        load_prompts({"name": name, "path": str(missing)})
    assert str(missing) in str(caught.value)


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_prompts({"name": "coco", "path": str(tmp_path)})


def test_count_beyond_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 images"):
        load_prompts({"name": "coco", "path": str(coco_file(tmp_path)), "count": 3})


def test_empty_sets_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    with pytest.raises(DataError, match="the set is empty"):
        load_prompts({"name": "geneval", "path": str(path)})


def test_ids_that_appear_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "load", lambda spec: [Prompt("scenes", "a", "x"), Prompt("scenes", "a", "y")])
    with pytest.raises(DataError, match="'a' appears twice"):
        load_prompts({"name": "scenes"})


def test_limit_is_a_prefix() -> None:
    assert load_prompts({"name": "geneval"}, limit=7) == load_prompts({"name": "geneval"})[:7]
    assert len(load_prompts({"name": "geneval"}, limit=10_000)) == 553
    with pytest.raises(ConfigError, match="limit = 0"):
        load_prompts({"name": "geneval"}, limit=0)


def test_the_hash_sees_ids_texts_metadata_and_order_but_not_key_order() -> None:
    a, b = Prompt("coco", "1", "x", {"k": 1, "l": 2}), Prompt("coco", "2", "y")
    base = prompt_list_hash([a, b])
    assert base == prompt_list_hash([Prompt("coco", "1", "x", {"l": 2, "k": 1}), b])
    others = [
        [b, a],
        [a],
        [a, Prompt("coco", "3", "y")],
        [a, Prompt("coco", "2", "z")],
        [a, Prompt("dpg", "2", "y")],
        [Prompt("coco", "1", "x", {"k": 1, "l": 3}), b],
    ]
    assert len({base, *map(prompt_list_hash, others)}) == 7


@pytest.mark.parametrize("name", ["geneval", "coco", "dpg"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe\.txt: cannot be read \(a pipe or a device"):
        load_prompts({"name": name, "path": str(tmp_path if name == "dpg" else tmp_path / "pipe.txt")})


@pytest.mark.parametrize("name", ["geneval", "coco"])
@pytest.mark.parametrize("text", ["[" * 1000, '{"a": ' * 100 + "1" + "}" * 100, "[NaN]", "9" * 5000])
def test_json_that_only_looks_like_it_names_the_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "p").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="p:1: not JSON"):
        load_prompts({"name": name, "path": str(tmp_path / "p")})


@pytest.mark.parametrize("name", ["geneval", "coco", "dpg"])
@pytest.mark.parametrize("path", ["x" * 300, "~nobody-of-this-name/p", "a\0b", "/dev/null/p"])
def test_a_path_that_cannot_be_is_one_sentence(name: str, path: str) -> None:
    with pytest.raises(UserError) as caught:
        load_prompts({"name": name, "path": path})
    assert len(str(caught.value).splitlines()) == 1
