"""Checkpoints as they are published -> parts of a family: every wrapper and naming, and everything that is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mulosd.convert import part as module
from mulosd.convert.part import convert, family_file
from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.families.card import load_card, target_ids
from mulosd.files.publish import file_sha256
from tests import fabricated

State = dict[str, Tensor]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The family file, with an empty weights folder."""
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path / "weights"))
    return str(fabricated.write_family(tmp_path, fabricated.family()))


def folder_of(path: Path) -> Path:
    return path / "weights" / "toygen"


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def plain(state: State) -> State:
    return state


def wrapped(state: State) -> dict[str, Any]:
    return {"model": state, "optimizer": {"state": {0: torch.ones(2)}}, "steps": 7, "args": fabricated.training_args(8)}


WRAPPERS: dict[str, Callable[[State], Any]] = {
    "bare, as FSDP leaves it": plain,
    "model, with optimizer and args": wrapped,
    "module, DeepSpeed": lambda state: {"module": state},
    "state_dict": lambda state: {"state_dict": state},
    "ema alone": lambda state: {"ema": state},
    "DDP prefix": lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
    "compiled under DDP": lambda state: {"model": {f"module._orig_mod.{key}": value for key, value in state.items()}},
    "FSDP inside names": lambda state: {
        key.replace("layers.0.", "layers.0._fsdp_wrapped_module."): value for key, value in state.items()
    },
    "left-overs": lambda state: {
        "model": {
            **state,
            "freqs_cis": torch.zeros(6 + 64, 8, 2),
            "causal_mask": torch.ones(4, 4).bool(),
            "layers.0.attention.kv_cache.k_cache": torch.zeros(2),
        }
    },
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_gives_the_same_part(toy: str, tmp_path: Path, name: str) -> None:
    state = fabricated.state("model-16")
    source = saved(tmp_path / "stage2.pt", WRAPPERS[name](state))
    done = convert(source, family=toy, part="model-16")
    written = load_file(done.path)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], value) for key, value in state.items())
    assert bool(done.dropped) == (name == "left-overs")
    assert done.path == folder_of(tmp_path) / "model-16.safetensors"
    assert [p.name for p in sorted(folder_of(tmp_path).iterdir())] == ["card.json", "model-16.safetensors"]


def test_the_card_states_what_was_converted(toy: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "stage2.pt", wrapped(fabricated.state("model-16")))
    done = convert(source, family=toy, part="model-16")
    entry = json.loads((folder_of(tmp_path) / "card.json").read_text())["parts"]["model-16"]
    assert entry["sha256"] == file_sha256(done.path)
    assert entry["config"] == fabricated.gpt_config(8)
    assert entry["dtype"] == "float32"
    assert entry["num_params"] == sum(value.numel() for value in fabricated.state("model-16").values())
    assert entry["source"]["files"] == {"stage2.pt": file_sha256(source)}
    assert entry["source"]["args"]["image_size"] == 128


@pytest.mark.parametrize(("part", "taken"), [("model-16", "model"), ("vq", "ema")])
def test_averaged_weights_are_taken_where_the_reference_takes_them(
    toy: str, tmp_path: Path, part: str, taken: str
) -> None:
    """A training file holds both: LlamaGen samples with `model`, its tokenizer's demo with `ema`."""
    states = {"model": fabricated.state(part, 1), "ema": fabricated.state(part, 2)}
    done = convert(saved(tmp_path / "a.pt", states), family=toy, part=part)
    written = load_file(done.path)
    assert all(torch.equal(written[key], value) for key, value in states[taken].items())
    assert done.entry["source"]["wrapper"] == taken


def test_a_dry_run_checks_and_writes_nothing(toy: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "a.pt", fabricated.state("model-16"))
    assert convert(source, family=toy, part="model-16", is_dry=True).entry["num_params"] > 0
    with pytest.raises(DataError, match="missing tensors"):
        convert(source, family=toy, part="vq", is_dry=True)
    assert not folder_of(tmp_path).exists()


def test_parts_add_up_to_a_target(toy: str, tmp_path: Path) -> None:
    for seed, part in enumerate(["vq", "model-8", "model-16"]):
        convert(saved(tmp_path / f"{part}.pt", fabricated.state(part, seed)), family=toy, part=part)
        card = load_card("toygen-16")
        assert len(card.missing) == 2 - seed
    assert "toygen-16" in target_ids()
    assert card.content_hash == load_card("toygen-16").content_hash
    again = saved(tmp_path / "b.pt", fabricated.state("model-8", 9))
    convert(again, family=toy, part="model-8")
    assert load_card("toygen-16").content_hash != card.content_hash


def test_bfloat16_stays_bfloat16(toy: str, tmp_path: Path) -> None:
    state = {key: value.bfloat16() for key, value in fabricated.state("model-8").items()}
    done = convert(saved(tmp_path / "a.pt", state), family=toy, part="model-8")
    assert done.entry["dtype"] == "bfloat16"
    assert load_file(done.path)["norm.weight"].dtype == torch.bfloat16


def test_views_and_ties_are_written_out(toy: str, tmp_path: Path) -> None:
    state = fabricated.state("model-8")
    state["output.weight"] = state["tok_embeddings.weight"]
    state["norm.weight"] = torch.zeros(1).expand(32)
    written = load_file(convert(saved(tmp_path / "a.pt", state), family=toy, part="model-8").path)
    assert torch.equal(written["output.weight"], written["tok_embeddings.weight"])
    assert written["norm.weight"].tolist() == [0.0] * 32


# LANTERN's copies and Hugging Face folders.


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_in_lanterns_naming(toy: str, tmp_path: Path, shards: int) -> None:
    state = fabricated.state("model-16")
    renamed = fabricated.lantern(state)
    folder = tmp_path / "LlamaGen-T2I-2"
    folder.mkdir()
    names = [f"model-{i}.safetensors" for i in range(shards)]
    weight_map = {key: names[i % shards] for i, key in enumerate(renamed)}
    for name in names:
        save_file({key: value for key, value in renamed.items() if weight_map[key] == name}, folder / name)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    done = convert(folder, family=toy, part="model-16")
    written = load_file(done.path)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], value) for key, value in state.items())
    assert sorted(done.entry["source"]["files"]) == names


def test_an_out_folder_below_a_file_is_one_sentence(toy: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    source = saved(tmp_path / "a.pt", fabricated.state("vq"))
    with pytest.raises(EnvironmentProblem, match=r"file/x/vq\.safetensors cannot be written \(Not a directory\)"):
        convert(source, family=toy, part="vq", out=tmp_path / "file" / "x")


def test_lanterns_q_without_its_k(toy: str, tmp_path: Path) -> None:
    renamed = fabricated.lantern(fabricated.state("model-16"))
    del renamed["model.layers.1.self_attn.k_proj.weight"]
    save_file(renamed, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match=r"missing tensors: model\.layers\.1\.self_attn\.k_proj"):
        convert(tmp_path / "a.safetensors", family=toy, part="model-16")


# What must not pass.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("norm.weight"), r"missing tensors: norm\.weight"),
        (lambda s: s.update({"layers.2.ffn_norm.weight": torch.ones(32)}), r"unexpected tensors: layers\.2\.ffn_norm"),
        (lambda s: s.update({"output.weight": torch.ones(64, 32)}), r"output\.weight \[64, 32\], not \[48, 32\]"),
        (lambda s: s.update({"freqs_cis_old": torch.ones(2)}), "unexpected tensors: freqs_cis_old"),
    ],
    ids=["missing", "unexpected", "shape", "nearly a left-over"],
)
def test_conversion_is_strict(toy: str, tmp_path: Path, change: Any, words: str) -> None:
    state = fabricated.state("model-16")
    change(state)
    with pytest.raises(DataError, match=words):
        convert(saved(tmp_path / "a.pt", {"model": state}), family=toy, part="model-16")
    assert not folder_of(tmp_path).exists()


def test_left_overs_are_those_of_the_architecture(toy: str, tmp_path: Path) -> None:
    used = torch.zeros(65536)
    vq = {**fabricated.state("vq"), "quantize.codebook_used": used}
    assert convert(saved(tmp_path / "vq.pt", {"model": vq}), family=toy, part="vq").dropped
    state = {**fabricated.state("model-16"), "quantize.codebook_used": used}
    with pytest.raises(DataError, match=r"unexpected tensors: quantize\.codebook_used"):
        convert(saved(tmp_path / "a.pt", state), family=toy, part="model-16")


@pytest.mark.parametrize(
    "content",
    [{"a": 1}, {"model": {"w": torch.ones(2), "b": {"c": torch.ones(2)}}}, [torch.ones(2)], {}, torch.ones(3)],
    ids=["no tensors", "nested", "list", "empty", "a tensor"],
)
def test_a_file_without_a_state_dict(toy: str, tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match="no state dict there"):
        convert(saved(tmp_path / "a.pt", content), family=toy, part="vq")


def test_two_names_for_one_tensor(toy: str, tmp_path: Path) -> None:
    state = fabricated.state("model-16")
    state["layers.0._orig_mod.ffn_norm.weight"] = torch.ones(32)
    with pytest.raises(DataError, match=r"two tensors for layers\.0\.ffn_norm\.weight"):
        convert(saved(tmp_path / "a.pt", state), family=toy, part="model-16")


def test_a_shard_of_fsdp(toy: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="consolidate"):
        convert(saved(tmp_path / "a.pt", {"layers.0._flat_param": torch.ones(2)}), family=toy, part="model-16")


# Nothing in LlamaGen's weights says which grid they were trained for.


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"args": fabricated.training_args(4)}, r"a grid .* = 4, model-16 has 8"),
        ({"freqs_cis": torch.zeros(6 + 16, 8, 2)}, r"positions \(freqs_cis\) = 22, model-16 has 70"),
    ],
    ids=["args", "table"],
)
def test_a_file_that_tells_of_another_grid(toy: str, tmp_path: Path, extra: dict[str, Any], words: str) -> None:
    state = fabricated.state("model-16")
    state |= {key: value for key, value in extra.items() if isinstance(value, Tensor)}
    content = {"model": state, **{key: value for key, value in extra.items() if not isinstance(value, Tensor)}}
    with pytest.raises(DataError, match=words):
        convert(saved(tmp_path / "a.pt", content), family=toy, part="model-16")


def test_the_file_of_another_stage(toy: str, tmp_path: Path) -> None:
    """Both stages have the same tensors; only the files' names, or having seen one before, tell them apart."""
    stage1 = saved(tmp_path / "stage1.pt", fabricated.state("model-8"))
    with pytest.raises(DataError, match="a file of this name is model-8, not model-16"):
        convert(stage1, family=toy, part="model-16")
    convert(stage1, family=toy, part="model-8")
    copied = tmp_path / "copy.pt"
    copied.write_bytes(stage1.read_bytes())
    with pytest.raises(DataError, match="this same file was converted as model-8"):
        convert(copied, family=toy, part="model-16")
    convert(stage1, family=toy, part="model-8")


def test_the_copy_of_another_stage(tmp_path: Path) -> None:
    """LANTERN's two folders hold the same names and shapes, too."""
    folder = tmp_path / "LlamaGen-T2I"
    folder.mkdir()
    tensors = fabricated.lantern(fabricated.full_size("llamagen_GPT-XL_t2i"))
    save_file({key: value[:1].clone() for key, value in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(DataError, match="a file of this name is model-256, not model-512"):
        convert(folder, family="llamagen-xl", part="model-512", out=tmp_path / "out")
    with pytest.raises(DataError, match=r"wrongly shaped tensors: .*\[1, 1280\], not"):  # the toy is no real one
        convert(folder, family="llamagen-xl", part="model-256", out=tmp_path / "out")


# Names and places.


def test_unknown_names(toy: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "a.pt", fabricated.state("vq"))
    with pytest.raises(ConfigError, match=r"unknown part 'model-61'.*Did you mean 'model-16'"):
        convert(source, family=toy, part="model-61")
    with pytest.raises(ConfigError, match=r"unknown family 'llamagen'.*Did you mean 'llamagen-xl'"):
        convert(source, family="llamagen", part="vq")
    with pytest.raises(DataError, match="there is no such file"):
        convert(tmp_path / "none.pt", family=toy, part="vq")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(family="../x"), r"'\.\./x' names a family or part"),
        (lambda data: data["parts"].update({"../y": data["parts"]["vq"]}), r"'\.\./y' names a family or part"),
        (lambda data: data.update(family="llamagen-xl"), "llamagen-xl is already known"),
        (lambda data: data.update(family="tiny"), "tiny is already known"),
        (lambda data: data.update(family="tiny", targets={}), "tiny is already known"),
        (lambda data: data.update(family="sources"), "sources is already known"),
        (lambda data: data["parts"].update({"card.json": {}}), r"'card\.json' names a family or part"),
        (lambda data: data["targets"].update({"tiny-mid": data["targets"]["toygen-8"]}), "tiny-mid is already known"),
        (lambda data: data["parts"]["vq"].update(architecture="vqq"), r"unknown architecture 'vqq'.*Did you mean 'vq'"),
    ],
)
def test_a_family_file_that_cannot_be_used(toy: str, tmp_path: Path, change: Any, words: str) -> None:
    data = fabricated.family()
    change(data)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words):
        convert(saved(tmp_path / "a.pt", fabricated.state("vq")), family=str(path), part="vq")


def test_a_full_disk_leaves_nothing_behind(toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tensors: State, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(Exception, match="No space left on device"):
        convert(saved(tmp_path / "a.pt", fabricated.state("vq")), family=toy, part="vq")
    assert list(folder_of(tmp_path).iterdir()) == []


# The released sizes, with every real name and shape.


@pytest.mark.parametrize(
    ("model", "family", "part"),
    [
        ("llamagen_GPT-XL_t2i", "llamagen-xl", "model-256"),
        ("llamagen_GPT-XL_t2i", "llamagen-xl", "model-512"),
        ("vq_VQ-16", "llamagen-xl", "vq"),
        ("llamagen_GPT-XL_c2i", "llamagen-c2i", "model-xl-384"),
        ("vq_VQ-16", "llamagen-c2i", "vq"),
        ("vq_VQ-16", "tar-7b", "vq"),
        ("ar_dtok_lp_256px", "tar-7b", "model-256"),
        ("ta_tok", "tar-1.5b", "ta-tok"),
    ],
)
def test_released_key_sets_convert(tmp_path: Path, model: str, family: str, part: str) -> None:
    entry = family_file(family)["parts"][part]
    tensors = fabricated.full_size(model)
    is_tar = part == "ta-tok" or model.startswith("ar_dtok")
    content = {"name": "lp", "args": fabricated.EasyDict({"model_type": "clip_cond"}), "sd": tensors}
    with fabricated.easydict():
        source = saved(tmp_path / entry["source"]["file"], {"model": content if is_tar else tensors})
    done = convert(source, family=family, part=part, out=tmp_path / "out", is_dry=True)
    buffers = 120 * 2048 if model.endswith("t2i") else 0
    assert done.entry["num_params"] == entry["num_params"] + buffers
    assert len(done.dropped) == {"vq": 1, "ta-tok": 465}.get(part, 0)
    assert done.entry["source"]["args"] == ({"model_type": "clip_cond"} if is_tar else {})


def test_the_tokenizer_of_8_pixels_is_a_family_of_ones_own(tmp_path: Path) -> None:
    """vq_ds8_c2i.pt, which belongs to no released model."""
    data = fabricated.family()
    data["targets"] = {}
    data["parts"]["vq"]["config"] = {**family_file("llamagen-c2i")["parts"]["vq"]["config"], "ch_mult": [1, 2, 2, 4]}
    source = saved(tmp_path / "vq_ds8_c2i.pt", {"model": fabricated.full_size("vq_VQ-8")})
    family = str(fabricated.write_family(tmp_path, data))
    assert convert(source, family=family, part="vq", out=tmp_path / "out", is_dry=True).dropped == (
        "quantize.codebook_used",
    )


@pytest.mark.parametrize("px", [512, 1024])
def test_the_length_of_the_position_table_tells_the_resolution(tmp_path: Path, px: int) -> None:
    tensors = fabricated.full_size("ar_dtok_lp_256px")
    source = saved(tmp_path / "a.pth", {"model": {"name": "lp", "args": {}, "sd": tensors}})
    length = (px // 16) ** 2 + 729 - 1
    with pytest.raises(DataError, match=rf"wrongly shaped tensors: abs_pe \[1, 984, 1280\], not \[1, {length}, 1280\]"):
        convert(source, family="tar-7b", part=f"model-{px}", out=tmp_path / "out", is_dry=True)
    tensors["abs_pe"] = torch.zeros(1).expand(1, length, 1280)
    source = saved(
        tmp_path / "b.pth", {"model": {"name": "lp", "args": {"max_seq_len": (px // 16) ** 2}, "sd": tensors}}
    )
    assert convert(source, family="tar-7b", part=f"model-{px}", out=tmp_path / "out", is_dry=True).entry["num_params"]
    source = saved(tmp_path / "c.pth", {"model": {"name": "lp", "args": {"max_seq_len": 256}, "sd": tensors}})
    with pytest.raises(DataError, match=r"args\.max_seq_len = 256, model-"):
        convert(source, family="tar-7b", part=f"model-{px}", out=tmp_path / "out", is_dry=True)


def test_the_position_table_must_be_there(tmp_path: Path) -> None:
    tensors = fabricated.full_size("ar_dtok_lp_256px")
    del tensors["abs_pe"]
    with pytest.raises(DataError, match="missing tensors: abs_pe"):
        convert(saved(tmp_path / "a.pth", tensors), family="tar-7b", part="model-256", out=tmp_path / "out")
