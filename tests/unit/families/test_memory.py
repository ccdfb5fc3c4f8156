"""What a target needs on a device, against real modules and the published sizes."""

from dataclasses import replace
from pathlib import Path

import pytest

from mulosd.families.card import load_card
from mulosd.families.memory import VIRTUAL_KEYS, cache_values, memory_lines, memory_needs, null_values
from mulosd.models.architectures import build_part
from mulosd.models.kv_cache import VIRTUAL_KEYS as TRUNK_KEYS
from tests import fabricated


@pytest.fixture(autouse=True)
def _no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path))


@pytest.mark.parametrize("family", ["toygen", "toytar"])
@pytest.mark.parametrize("part", ["model-8", "model-16"])
def test_a_cache_is_as_large_as_the_real_one(family: str, part: str) -> None:
    data = fabricated.family() if family == "toygen" else fabricated.tar_family()
    entry = data["parts"][part]
    model = build_part(part, entry)
    cache = model.new_cache(4, scratch=entry["config"]["grid"])
    assert cache_values(entry["config"], 4) == cache.kv.numel()
    assert VIRTUAL_KEYS == TRUNK_KEYS


def test_the_null_prefix_is_as_large_as_the_real_one() -> None:
    entry = fabricated.tar_family()["parts"]["model-8"]
    null = build_part("model-8", entry)._null_prefix(4)
    assert null_values(entry["config"], 4) == null.kv.numel() + null.features.numel()


def test_a_coarser_scale_takes_a_shorter_prefix() -> None:
    card = load_card("tar-7b-512")
    target = {**card.raw["targets"][card.target_id], "condition": {"scale": 2}}
    coarse = replace(card, raw={**card.raw, "targets": {card.target_id: target}})
    full, short = (
        {need.name: need.num_bytes or 0 for need in memory_needs(c, dtype="bfloat16", batch_size=3)}
        for c in (card, coarse)
    )
    row = 2 * 30 * 1280 * 2  # bytes of one cached row: keys and values of 30 layers in bfloat16
    for name in ("model-512", "model-256"):
        assert full[f"{name} cache"] - short[f"{name} cache"] == 3 * 2 * (729 - 81) * row
        assert short[f"{name} null prefix"] == 81 * (row + 2 * 1280)


def test_an_attended_prefix_takes_its_rows() -> None:
    card = load_card("tiny-mid")
    config = card.raw["parts"]["mid"]["config"]
    model = build_part("mid", card.raw["parts"]["mid"])
    assert cache_values(config, 2) == model.new_cache(2, scratch=config["grid"]).kv.numel()


def test_published_sizes() -> None:
    needs = {
        need.name: need.num_bytes for need in memory_needs(load_card("llamagen-xl-512"), dtype="bfloat16", batch_size=1)
    }
    assert list(needs) == ["vq", "model-512", "model-256", "t5", "model-512 cache", "model-256 cache"]
    assert needs["model-512"] == 2 * 777_678_080
    assert needs["vq"] == 4 * 71_883_403  # stays float32
    assert needs["t5"] is None  # not published, known once converted
    slots = 2 + 1024 + 32 + 1
    assert needs["model-512 cache"] == 2 * slots * 184_320  # bytes per row and token: 2 · 36 layers · 1280 · 2


def test_guidance_doubles_the_rows() -> None:
    card = load_card("tar-7b-1024")
    plain = replace(card, sampler={**card.sampler, "guidance": 1.0})
    guided, alone = (
        {need.name: need.num_bytes for need in memory_needs(c, dtype="bfloat16", batch_size=3)} for c in (card, plain)
    )
    assert guided["model-1024 cache"] == 2 * (alone["model-1024 cache"] or 0)
    assert guided["model-256 cache"] == alone["model-256 cache"]
    assert guided.keys() - alone.keys() == {"model-1024 null prefix"}


def test_weights_of_the_shipped_family() -> None:
    card = load_card("tiny-mid")
    needs = {need.name: need.num_bytes for need in memory_needs(card, dtype="float32", batch_size=1)}
    module = build_part("mid", card.raw["parts"]["mid"])
    assert needs["mid"] == 4 * sum(value.numel() for value in module.state_dict().values())
    assert memory_lines(card, dtype="float32", batch_size=1)[0].startswith("memory of tiny-mid: ")


def test_a_checkpoint_that_drafts_for_nobody_takes_nothing() -> None:
    card = load_card("llamagen-xl-512")
    needs = memory_needs(card, dtype="bfloat16", batch_size=1, drafters=())
    assert [need.name for need in needs] == ["vq", "model-512", "t5", "model-512 cache"]


def test_a_self_drafter_takes_a_cache_alone() -> None:
    card = load_card("tiny-mid")
    config = {**card.raw["parts"]["mid"]["config"], "grids": [8, 16]}
    raw = {**card.raw, "parts": {**card.raw["parts"], "mid": {**card.raw["parts"]["mid"], "config": config}}}
    needs = memory_needs(replace(card, raw=raw), dtype="float32", batch_size=1, drafters=("self",))
    assert [need.name for need in needs] == ["vq", "mid", "mid cache", "mid as drafter cache"]
    assert needs[-1].num_bytes == 4 * cache_values({**config, "grid": 8}, 2)


def test_the_lines_name_what_is_unknown() -> None:
    first, second = memory_lines(load_card("llamagen-xl-512"), dtype="bfloat16", batch_size=8)
    assert "and t5 (size unknown before conversion) per device at batch size 8 in bfloat16" in first
    assert "model-512 1.45 GiB" in second
