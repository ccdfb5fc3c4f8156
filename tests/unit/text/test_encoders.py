"""Encoders on toy folders: what they hand to the image model, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mulosd.errors import ConfigError, DataError
from mulosd.families.card import load_card
from mulosd.families.encoder_facts import encoder_facts
from mulosd.files.publish import file_sha256
from mulosd.sampling.filters import Sampler, draw
from mulosd.text import build_encoder
from mulosd.text.caption_clean import clean
from mulosd.text.packing import pack, unpack
from mulosd.text.t5 import T5, left_padded
from mulosd.text.tar_llm import TarLLM
from mulosd.types import PromptTokens
from tests.unit.text import folders

PROMPTS = ["A Red circle, of blue", "two", "a photo of two blue squares of a red circle of a photo"]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> T5:
    root = tmp_path_factory.mktemp("t5")
    entry = folders.folder_entry(folders.t5_folder(root / "t5"), "t5")
    encoder = build_encoder(folders.card(root, {"t5": entry}, prefix_len=12), device="cpu", dtype="float32")
    assert isinstance(encoder, T5)
    return encoder


@pytest.fixture(scope="module")
def make_llm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TarLLM]:
    """A toy Tar: an LLM folder and a TA-Tok, on a 3 x 3 grid of ids."""

    def make(*, condition: dict[str, Any] | None = None, tamper: Callable[[Path], None] = id, **options: Any) -> TarLLM:
        root = tmp_path_factory.mktemp("tar")
        folder = folders.llm_folder(root / "llm", **options)
        tamper(folder)
        ta_tok = folders.ta_tok_file(root / "ta-tok.safetensors")
        parts = {
            "llm": folders.folder_entry(folder, "tar-llm"),
            "ta-tok": {
                "architecture": "ta-tok",
                "config": folders.TA_TOK,
                "file": ta_tok.name,
                "sha256": file_sha256(ta_tok),
            },
        }
        card = folders.card(root, parts, prefix_len=9, condition=condition or {})
        encoder = build_encoder(card, device="cpu", dtype="float32")
        assert isinstance(encoder, TarLLM)
        return encoder

    return make


@pytest.fixture(scope="module")
def tar(make_llm: Callable[..., TarLLM]) -> TarLLM:
    return make_llm()


def drawn_one_by_one(tar: TarLLM, prompt: str, seed: int, length: int) -> list[int]:
    """Ids of one prompt by whole forwards over the text as far as it goes, read off the decoded text."""
    model, tokenizer = tar._model, tar._tokenizer
    tokens = tokenizer(tar._prompt(prompt), return_tensors="pt").input_ids
    start = tokens.shape[1]
    for index in range(length):
        with torch.inference_mode():
            logits = model(input_ids=tokens).logits[:, -1:]
        where = torch.tensor([[index]])
        side = round(length**0.5)
        sampler = Sampler(temperature=1.0, top_k=1200, top_p=0.95)
        new = draw(logits, sampler, torch.tensor([seed]), where, stream="condition", grid=side)
        tokens = torch.cat([tokens, new], 1)
        if int(new) in model.generation_config.eos_token_id:
            break
    return [int(i) for i in re.findall(r"<I(\d+)>", tokenizer.decode(tokens[0, start:]))]


def test_t5_features_lie_on_the_left_of_nothing(t5: T5) -> None:
    condition = t5.encode(PROMPTS, [0, 0, 0]).condition
    assert condition.values.shape == (3, 12, 16)
    for b, prompt in enumerate(PROMPTS):
        tokens = t5._tokenizer(clean(prompt), max_length=12, truncation=True, return_tensors="pt").input_ids
        num = tokens.shape[1]
        assert condition.mask[b].tolist() == [False] * (12 - num) + [True] * num
        assert tokens[0, -1] == 1  # the end token counts
        with torch.inference_mode():
            alone = t5._model(input_ids=tokens).last_hidden_state[0]
        assert torch.allclose(condition.values[b, 12 - num :], alone, atol=1e-5)
        assert not condition.values[b, : 12 - num].any()
    assert condition.mask.sum(1).tolist()[2] == 12  # cut


def test_t5_reads_cleaned_captions(t5: T5) -> None:
    one, other = (t5.encode([text], [0]).condition for text in ("A Red (circle)", "a red circle"))
    assert torch.equal(one.values, other.values)


@pytest.mark.parametrize(
    ("caption", "read"),
    [
        ("a red circle", PromptTokens(3)),
        ("кот", PromptTokens(0, unknown=1)),  # no token of the vocabulary
        ("猫", PromptTokens(0)),  # which the cleaning takes away
        ("", PromptTokens(0)),
        ("red " * 20, PromptTokens(11, cut=9)),  # 12 tokens with the end token
    ],
)
def test_t5_says_what_it_read(t5: T5, caption: str, read: PromptTokens) -> None:
    assert t5.encode(["a red circle", caption], [0, 0]).tokens == (PromptTokens(3), read)


def test_tar_reads_every_text(tar: TarLLM) -> None:
    assert tar.encode(["a", "кот"], [1, 2]).tokens == (PromptTokens(1), PromptTokens(6))  # bytes


def test_tar_draws_the_same_ids_in_any_batch(tar: TarLLM) -> None:
    encoded = tar.encode(PROMPTS, [3, 4, 5])
    assert encoded.padded_ids == (0, 0, 0)
    assert encoded.condition.values.shape == (3, 9)
    assert encoded.condition.mask.all()
    for prompt, seed, ids in zip(PROMPTS, (3, 4, 5), encoded.condition.values, strict=True):
        assert ids.tolist() == drawn_one_by_one(tar, prompt, seed, 9)
    assert tar.encode(PROMPTS[:1], [4]).condition.values.tolist() != encoded.condition.values[:1].tolist()


def test_tar_fills_what_an_early_stop_leaves_with_id_zero_and_counts_it(make_llm: Callable[..., TarLLM]) -> None:
    brief = make_llm(is_brief=True)
    seeds = list(range(12))
    encoded = brief.encode(["a"] * 12, seeds)
    expected = [drawn_one_by_one(brief, "a", seed, 9) for seed in seeds]
    assert encoded.padded_ids == tuple(9 - len(ids) for ids in expected)
    assert encoded.condition.values.tolist() == [ids + [0] * (9 - len(ids)) for ids in expected]
    assert encoded.condition.mask.all()  # padding is an id like any other, as in the reference
    assert len({len(ids) for ids in expected}) > 2
    assert 0 < sum(encoded.padded_ids) < 12 * 9


def test_tar_does_not_take_ids_from_the_prompt(make_llm: Callable[..., TarLLM]) -> None:
    brief = make_llm(is_brief=True)
    for seed in range(4):
        drawn = drawn_one_by_one(brief, "<I7><I7>", seed, 9)
        encoded = brief.encode(["<I7><I7>"], [seed])
        assert encoded.condition.values[0].tolist() == drawn + [0] * (9 - len(drawn))


def test_tar_prompt(tar: TarLLM) -> None:
    """The chat template of Tar's scripts, spelled out."""
    assert tar._prompt("a cat") == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na cat<|im_end|>\n"
        "<|im_start|>assistant\n<im_start><S0>"
    )


def test_tar_scale_and_sampler_are_the_cards(make_llm: Callable[..., TarLLM]) -> None:
    coarse = make_llm(condition={"scale": 2, "top_k": 1})
    assert coarse._prompt("a").endswith("<im_start><S2>")
    ids = [coarse.encode(["a"], [seed]).condition.values for seed in (1, 2)]
    assert ids[0].shape == (1, 1)  # a third of 3 x 3
    assert torch.equal(ids[0], ids[1])  # top_k = 1 leaves nothing to chance


def test_tar_features(tar: TarLLM) -> None:
    condition = tar.encode(["a"], [1]).condition
    features = tar.features(condition)
    assert features.values.shape == (1, 9, 8)
    assert torch.equal(features.values, tar._decoder.decode(condition.values))


def test_a_penalty_of_the_files_is_told(make_llm: Callable[..., TarLLM], caplog: pytest.LogCaptureFixture) -> None:
    make_llm(penalty=1.1).encode(["a"], [1])
    assert "repetition penalty of 1.1, which is not applied" in caplog.text


def test_a_plain_qwen_tokenizer_is_refused(make_llm: Callable[..., TarLLM]) -> None:
    def rename(folder: Path) -> None:
        path = folder / "tokenizer.json"
        text = path.read_text(encoding="utf-8").replace("<im_start>", "<im_first>")
        path.write_text(text, encoding="utf-8")

    with pytest.raises(DataError, match="the tokenizer has no <im_start>"):
        make_llm(tamper=rename).encode(["a"], [1])


def test_the_rotary_base_of_files_by_older_transformers_counts(make_llm: Callable[..., TarLLM]) -> None:
    def age(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        assert config.pop("rope_parameters")["rope_theta"] == 10000.0
        path.write_text(json.dumps({**config, "rope_theta": 1e6}))

    rotary = make_llm(tamper=age)._model.model.rotary_emb
    torch.testing.assert_close(rotary.inv_freq, torch.tensor([1.0, 1e-3]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("model.layers.1.mlp.up_proj.weight"), r"missing tensors: model\.layers\.1\.mlp\.up_proj"),
        (lambda s: s.update({"model.vision_tower.w": torch.ones(2)}), r"unexpected tensors: model\.vision_tower\.w"),
        (lambda s: s.update({"model.norm.weight": torch.ones(8)}),
         r"wrongly shaped tensors: model\.norm\.weight \[8\], not \[16\]"),
    ],
    ids=["missing", "unexpected", "shape"],
)  # fmt: skip
def test_tensors_of_another_model_are_refused(make_llm: Callable[..., TarLLM], change: Any, words: str) -> None:
    from safetensors.torch import load_file, save_file

    def tamper(folder: Path) -> None:
        path = folder / "model.safetensors"
        state = load_file(path)
        change(state)
        save_file(state, path, metadata={"format": "pt"})

    with pytest.raises(DataError, match=words):
        make_llm(tamper=tamper).encode(["a"], [1])


def test_the_whole_of_t5_loads_as_its_encoder_half(t5: T5, tmp_path: Path) -> None:
    """The published folder holds the decoder and its head too."""
    from safetensors.torch import load_file, save_file

    folder = folders.t5_folder(tmp_path / "t5")
    state = load_file(folder / "model.safetensors")
    more = {"decoder.block.0.layer.0.SelfAttention.q.weight": torch.ones(16, 16), "lm_head.weight": torch.ones(38, 16)}
    save_file(state | more, folder / "model.safetensors", metadata={"format": "pt"})
    entry = folders.folder_entry(folder, "t5")
    encoder = build_encoder(folders.card(tmp_path, {"t5": entry}, prefix_len=12), device="cpu", dtype="float32")
    assert torch.equal(encoder.encode(["a"], [0]).condition.values, t5.encode(["a"], [0]).condition.values)


def test_changed_files_are_refused(t5: T5, tmp_path: Path) -> None:
    folder = folders.t5_folder(tmp_path / "t5")
    entry = folders.folder_entry(folder, "t5")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "extra": 1}))
    encoder = build_encoder(folders.card(tmp_path, {"t5": entry}, prefix_len=12), device="cpu", dtype="float32")
    with pytest.raises(DataError, match=r"tokenizer_config\.json: sha256"):
        encoder.encode(["a"], [0])


def test_an_unknown_encoder_is_refused(tmp_path: Path) -> None:
    card = folders.card(tmp_path, {"clip": {"architecture": "clip"}}, prefix_len=12)
    with pytest.raises(ConfigError, match="unknown text encoder 'clip'; allowed: t5, tar-llm"):
        build_encoder(card, device="cpu", dtype="float32")


def test_words_are_not_staged() -> None:
    card = load_card("tiny-mid")
    assert encoder_facts(card, device="cpu", dtype="float32") is None
    encoder = build_encoder(card, device="cpu", dtype="float32")
    condition = encoder.encode(["a photo of a red circle"], [1]).condition
    assert condition.values.shape == (1, card.prefix_len)
    assert condition.mask.all()


def test_identity_covers_what_changes_a_condition(tmp_path: Path) -> None:
    def facts(sha: str = "1", prefix_len: int = 12, dtype: str = "float32", device: str = "cpu", **target: Any) -> str:
        card = folders.card(
            tmp_path, {"e": {"architecture": "tar-llm", "sha256": sha}}, prefix_len=prefix_len, **target
        )
        found = encoder_facts(card, device=device, dtype=dtype)
        assert found is not None
        assert found.is_seeded
        return found.identity

    changed = [facts(sha="2"), facts(prefix_len=9), facts(dtype="bfloat16"), facts(device="cuda")]
    changed.append(facts(condition={"scale": 1}))
    assert len({facts(), *changed}) == 6
    greedy = [{"top_k": 1}, {"temperature": 0}]
    with pytest.MonkeyPatch.context() as patch:  # greedy ids once depended on the seed
        before = [facts(condition=settings) for settings in greedy], facts()
        patch.setattr("mulosd.families.encoder_facts.RULE", "noise")
        after = [facts(condition=settings) for settings in greedy], facts()
    assert set(before[0]).isdisjoint(after[0])
    assert before[1] == after[1]
    assert facts() == facts(sampler={"guidance": 9.0})
    assert facts(device="cuda:0") == facts(device="cuda")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.bfloat16]))
def test_packing_keeps_every_bit(lengths: list[int], dtype: torch.dtype) -> None:
    mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    condition = left_padded(torch.randn(len(lengths), 5, 3).to(dtype), mask)
    rows = pack(condition)
    assert [len(row["values"]) for row in rows] == [n * 3 * dtype.itemsize for n in lengths]
    back = unpack(rows)
    assert back.values.dtype == dtype
    assert torch.equal(back.values, condition.values)
    assert torch.equal(back.mask, condition.mask)


def test_packing_keeps_ids(tar: TarLLM) -> None:
    condition = tar.encode(["a"], [1]).condition
    back = unpack(pack(condition))
    assert back.values.dtype == torch.int64
    assert torch.equal(back.values, condition.values)


def test_conditions_of_two_lengths_make_no_batch(t5: T5, tar: TarLLM) -> None:
    rows = [*pack(t5.encode(["a"], [0]).condition), *pack(tar.encode(["a"], [1]).condition)]
    with pytest.raises(ValueError, match="cannot form a batch"):
        unpack(rows)


def test_tiny_says_which_words_it_does_not_know() -> None:
    encoder = build_encoder(load_card("tiny-mid"), device="cpu", dtype="float32")
    encoded = encoder.encode(["一二", "a photo of a red circle"], [0, 0])
    assert encoded.tokens == (PromptTokens(read=0, unknown=1), PromptTokens(read=2))
