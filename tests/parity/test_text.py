"""Rows 15 to 17 of the parity plan: caption cleaning, T5 encoder, Qwen2; the networks through `transformers`."""

import json
from typing import Any

import pytest
import torch

from mulosd.text.caption_clean import clean, clean_once
from mulosd.text.t5 import left_padded
from tests.parity.fixtures import FOLDER, Fixture, agrees, load

CASES = json.loads((FOLDER / "caption_clean.json").read_text(encoding="utf-8"))["cases"]


def test_every_caption_is_there() -> None:
    assert len(CASES) == 34


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_captions_are_cleaned_as_by_the_reference(case: dict[str, str]) -> None:
    assert clean_once(case["in"]) == case["once"]
    assert clean(case["in"]) == case["out"]


def test_one_pass_is_not_enough() -> None:
    assert any(case["once"] != case["out"] for case in CASES)


def test_t5_encoder() -> None:
    from transformers import T5Config, T5EncoderModel

    fixture = load("t5_encoder")
    c = fixture.config
    config = T5Config(
        vocab_size=c["vocab_size"],
        d_model=c["d_model"],
        d_kv=c["d_kv"],
        d_ff=c["d_ff"],
        num_layers=c["num_layers"],
        num_heads=c["num_heads"],
        feed_forward_proj="gated-gelu",
    )
    model = T5EncoderModel(config).eval()
    missing, unexpected = model.load_state_dict(fixture.weights, strict=False)
    assert set(missing) <= {"encoder.embed_tokens.weight"}  # tied to shared.weight
    assert unexpected == []
    tensors = fixture.tensors
    with torch.inference_mode():
        states = model(input_ids=tensors["in.input_ids"], attention_mask=tensors["in.attention_mask"]).last_hidden_state
    assert agrees(states, tensors["out.last_hidden_state"])
    mask = tensors["in.attention_mask"].bool()
    condition = left_padded(tensors["out.last_hidden_state"], mask)
    for b in range(2):
        num = int(mask[b].sum())
        assert torch.equal(condition.values[b, -num:], tensors["out.last_hidden_state"][b, :num])
        assert not condition.values[b, :-num].any()
        assert condition.mask[b].tolist() == [False] * (160 - num) + [True] * num


# The fixture was not made with the frequencies of its rope_theta: its generator seems to have filled the buffer
# `rotary_emb.inv_freq` with random numbers, as it did the weights. These four were solved for from the logits of two
# positions; being float16 numbers, as the weights are, they then give all 9600 logits.
QWEN2_INV_FREQ = [0.034423828125, 0.08453369140625, 0.0219268798828125, -0.129150390625]


def qwen2(fixture: Fixture) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {key: value for key, value in fixture.config.items() if key not in ("rope_theta", "transformers", "dtype")}
    rope = {"rope_type": "default", "rope_theta": fixture.config["rope_theta"]}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, rope_parameters=rope)).eval()
    missing, unexpected = model.load_state_dict(fixture.weights, strict=False)
    assert (set(missing), unexpected) == ({"lm_head.weight"}, [])  # tied to model.embed_tokens.weight
    model.tie_weights()
    return model


@torch.inference_mode()
def test_qwen2() -> None:
    fixture = load("qwen2_lm")
    model = qwen2(fixture)
    model.model.rotary_emb.inv_freq.copy_(torch.tensor(QWEN2_INV_FREQ))
    ids, expected = fixture.tensors["in.input_ids"], fixture.tensors["out.logits"]
    assert agrees(model(input_ids=ids).logits, expected)
    out = model(input_ids=ids[:, :30], use_cache=True)
    for i in range(30, 40):  # cached, one token at a time
        assert agrees(out.logits[:, -1], expected[:, i - 1])
        out = model(input_ids=ids[:, i : i + 1], cache=out.cache, use_cache=True)
    assert agrees(out.logits[:, -1], expected[:, -1])


@torch.inference_mode()
def test_qwen2_fixture_is_not_made_with_the_frequencies_of_its_base() -> None:
    fixture = load("qwen2_lm")
    model = qwen2(fixture)
    base = fixture.config["rope_theta"]
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, base ** -(torch.arange(4) / 4))
    logits, expected = model(input_ids=fixture.tensors["in.input_ids"]).logits, fixture.tensors["out.logits"]
    assert agrees(logits[:, 0], expected[:, 0])  # one key: no frequency matters
    assert not agrees(logits[:, 1:], expected[:, 1:])
