"""LlamaGen's text-to-image GPT: prefill, cached decoding, multi-token calls, the real prefix, against the reference.

`collapses`: with the prefix as one virtual key, as by default, and with all its rows in the cache.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.methods import AR, SamplerKnobs, ZipAR
from mulosd.models import kv_cache, transformer
from mulosd.models.condition import Condition, Prefix
from mulosd.models.conditioning import CaptionEmbedder
from mulosd.models.image_gpt import ImageGPT
from mulosd.models.kv_cache import VIRTUAL_KEYS, KVCache
from mulosd.sampling.filters import Sampler, guide
from tests.parity.fixtures import Fixture, agrees, condition_of, load, load_gpt
from tests.parity.runs import feed, prefill, run, start

both_caches = pytest.mark.parametrize("collapses", [True, False], ids=["collapsed", "plain"])
PREFIX120 = {"nocfg": (1.0, True), "cfg7.5": (7.5, True), "cfg7.5_nomask": (7.5, False)}  # name: (guidance, masked)


@pytest.fixture(scope="module")
def t2i() -> Fixture:
    return load("gpt_t2i")


@pytest.fixture(scope="module")
def prefix120() -> Fixture:
    return load("gpt_t2i_prefix120")


@pytest.fixture(scope="module")
def chunk() -> Fixture:
    return load("gpt_t2i_chunk")


def greedy_run(model: ImageGPT, fixture: Fixture, cache: KVCache) -> Tensor:
    """Logits [15, 2B, V] after feeding the reference's greedy tokens one by one."""
    tokens = fixture.tensors["out.tokens_greedy"]
    return torch.stack([feed(model, cache, tokens[:, j : j + 1], [j])[:, 0] for j in range(15)])


@both_caches
def test_prefill_and_cached_decoding(t2i: Fixture, collapses: bool) -> None:
    model, out = load_gpt(t2i, collapses=collapses), t2i.tensors
    cache, logits = prefill(model, condition_of(t2i))
    assert agrees(logits, out["out.prefill_logits_2B"])
    assert agrees(greedy_run(model, t2i, cache), out["out.decode_logits_2B"])
    T, keys = model.config.prefix_len, cache.prefix_slots
    assert keys == (VIRTUAL_KEYS if collapses else T)
    for layer in (0, 2):
        for kind, name in enumerate("kv"):
            ours, reference = cache.kv[layer, kind], out[f"out.{name}_cache_layer{layer}"]
            assert agrees(ours[:, :, keys : keys + 15], reference[:, :, T : T + 15])  # the last token is never fed
            prefix = virtual(reference[:, :, :T], cache.prefix_mask) if collapses else reference[:, :, :T]
            assert agrees(ours[:, :, :keys], prefix)
    assert not cache.kv[:, 0, :, :, :keys].any()  # the rotation erases every key of the prefix


def virtual(rows: Tensor, mask: Tensor) -> Tensor:
    """What the virtual keys hold of the prefix rows [R, heads, T, head_dim]: the mean of the visible ones."""
    seen = mask[:, None, :, None].float()
    return ((rows * seen).sum(2, keepdim=True) / seen.sum(2, keepdim=True)).expand(-1, -1, VIRTUAL_KEYS, -1)


def test_guided_greedy_tokens(t2i: Fixture) -> None:
    logits = torch.cat([t2i.tensors["out.prefill_logits_2B"][None, :, -1], t2i.tensors["out.decode_logits_2B"]])
    cond, null = logits.chunk(2, dim=1)
    guided = guide(cond, null, t2i.config["cfg_scale"])
    assert torch.equal(guided.argmax(-1).T, t2i.tensors["out.tokens_greedy"].long())


@pytest.mark.parametrize("method", [AR(), ZipAR(window=4)], ids=["ar", "zipar"])
def test_decoders_reproduce_the_greedy_tokens(t2i: Fixture, method: SamplerKnobs) -> None:
    sampler = Sampler(guidance=t2i.config["cfg_scale"], top_k=1)
    job = Job(load_gpt(t2i), condition_of(t2i), torch.tensor([5, 6]), sampler)
    tokens = decode(job, method).tokens.reshape(2, -1)
    assert torch.equal(torch.from_numpy(tokens), t2i.tensors["out.tokens_greedy"].long())


def test_the_mask_is_the_references(t2i: Fixture) -> None:
    model = load_gpt(t2i, collapses=False)
    cache, rows = start(model, condition_of(t2i))
    body = torch.ones(16, 16, dtype=torch.bool).tril().expand(len(rows), -1, -1)
    ours = model._visible(cache, body, True, 16, 28)
    assert ours is not None
    assert torch.equal(ours[:, 0], t2i.tensors["out.causal_mask"][:, :28, :28].bool())


def test_each_image_alone_gives_the_same_logits(t2i: Fixture) -> None:
    both = condition_of(t2i)
    for b in range(2):
        _, logits = prefill(load_gpt(t2i), Condition(both.values[b : b + 1], both.mask[b : b + 1]))
        assert agrees(logits, t2i.tensors["out.prefill_logits_2B"][[b, b + 2]])


@both_caches
def test_chunked_scattered_and_rolled_back_calls(t2i: Fixture, chunk: Fixture, collapses: bool) -> None:
    model, tokens, out = load_gpt(t2i, collapses=collapses), chunk.tensors["in.tokens"], chunk.tensors
    cache, _ = prefill(model, condition_of(t2i))
    sequential = torch.cat([feed(model, cache, tokens[:, p : p + 1], [p]) for p in range(12)], dim=1)
    assert agrees(sequential, out["out.sequential_logits"])
    cache, _ = prefill(model, condition_of(t2i))
    chunks = [range(5), range(5, 12)]
    chunked = torch.cat([feed(model, cache, tokens[:, c.start : c.stop], list(c)) for c in chunks], dim=1)
    assert agrees(chunked, out["out.chunked_logits"])
    assert agrees(chunked, sequential)
    scattered = feed(model, cache, out["in.sub_tokens"], out["in.sub_positions"].tolist())
    assert agrees(scattered, out["out.scattered_logits"])
    assert agrees(feed(model, cache, tokens[:, 12:13], [12]), out["out.next_after_scattered"])
    assert agrees(feed(model, cache, tokens[:, 13:15], [4, 5]), out["out.rollback_logits"])
    keys = cache.prefix_slots
    assert agrees(cache.kv[1, 0, :, :, keys : keys + 13], out["out.k_cache_layer1_final"])


@both_caches
def test_the_prefix_may_ride_in_the_first_call(t2i: Fixture, chunk: Fixture, collapses: bool) -> None:
    model, tokens = load_gpt(t2i, collapses=collapses), chunk.tensors["in.tokens"].repeat(2, 1)[:, :12]
    cache, rows = start(model, condition_of(t2i))
    where = torch.arange(12).expand(4, -1)
    logits = model(tokens, where, where, cache, torch.ones(12, 12, dtype=torch.bool).tril().expand(4, -1, -1), rows)
    assert agrees(logits[:, 0], t2i.tensors["out.prefill_logits_2B"][:, -1])
    assert agrees(logits[:, 1:], chunk.tensors["out.sequential_logits"])


@both_caches
@pytest.mark.parametrize("name", PREFIX120)
def test_the_real_prefix_length(prefix120: Fixture, name: str, collapses: bool) -> None:
    """Captions of 1, 37 and 120 valid rows in one batch."""
    guidance, masked = PREFIX120[name]
    model, out = load_gpt(prefix120, collapses=collapses), prefix120.tensors
    tokens, guided = out[f"out.{name}.tokens"], guidance > 1
    reference = out[f"out.{name}.logits_2B" if guided else f"out.{name}.logits"]
    condition = condition_of(prefix120, masked=masked)
    assert agrees(run(model, condition, tokens, 16, with_null=guided), reference)
    job = Job(model, condition, torch.tensor([1, 2, 3]), Sampler(guidance=guidance, top_k=1))
    assert torch.equal(torch.from_numpy(decode(job, AR()).tokens.reshape(3, -1)), tokens.long())


def test_chunked_and_scattered_calls_on_the_real_prefix(prefix120: Fixture) -> None:
    """The virtual key under every kind of call: rows of 1, 37 and 120, guided, against the reference's loop."""
    tokens, reference = (prefix120.tensors[f"out.cfg7.5.{name}"] for name in ("tokens", "logits_2B"))
    model = load_gpt(prefix120)
    cache, first = prefill(model, condition_of(prefix120))
    assert agrees(first[:, -1], reference[0])
    junk = (tokens + 1) % 64
    feed(model, cache, junk[:, [2, 4, 5]], [2, 4, 5])  # overwritten below
    chunked = torch.cat(
        [feed(model, cache, tokens[:, :7], list(range(7))), feed(model, cache, tokens[:, 7:15], list(range(7, 15)))], 1
    )
    assert agrees(chunked.transpose(0, 1), reference[1:])
    scattered = feed(model, cache, tokens[:, [11, 3, 8]], [11, 3, 8])
    assert agrees(scattered.transpose(0, 1), reference[[12, 4, 9]])


def test_the_prefix_costs_two_keys(prefix120: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither memory nor attention knows the 120 rows; the last of three queries sees 2 + 8 keys."""
    model, lengths = load_gpt(prefix120), []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        lengths.append(k.shape[2])
        return attention(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    cache, _ = prefill(model, condition_of(prefix120))
    assert cache.kv.shape[4] == VIRTUAL_KEYS + 17
    feed(model, cache, prefix120.tensors["out.cfg7.5.tokens"][:, 5:8], [5, 6, 7])
    assert lengths == [VIRTUAL_KEYS] * 2 + [VIRTUAL_KEYS + 8] * 2


def test_the_uncached_pass(prefix120: Fixture) -> None:
    """Teacher forcing without a cache sees every prefix row: the reference's run without a mask."""
    model, tokens = load_gpt(prefix120), prefix120.tensors["out.cfg7.5_nomask.tokens"].long()
    prefix = model.prefix(condition_of(prefix120, masked=False), with_null=True)
    logits = model.forward_train(prefix.rows, tokens.repeat(2, 1))
    assert agrees(logits.transpose(0, 1), prefix120.tensors["out.cfg7.5_nomask.logits_2B"])


def test_a_caption_without_padding_needs_no_mask(prefix120: Fixture) -> None:
    model, tokens = load_gpt(prefix120), prefix120.tensors["out.nocfg.tokens"].long()
    rows = model.prefix(condition_of(prefix120), with_null=False).rows
    assert prefix120.config["valid_lengths"][2] == 120
    assert agrees(model.forward_train(rows, tokens)[2], prefix120.tensors["out.nocfg.logits"][:, 2])


# Each of the following mistakes must be seen by the comparison above: it could pass silently.


def run_agrees(model: ImageGPT, fixture: Fixture) -> bool:
    cache, logits = prefill(model, condition_of(fixture))
    fits = agrees(logits[:, -1], fixture.tensors["out.prefill_logits_2B"][:, -1])
    return fits and agrees(greedy_run(model, fixture, cache), fixture.tensors["out.decode_logits_2B"])


@both_caches
def test_the_comparison_passes_without_a_mistake(t2i: Fixture, collapses: bool) -> None:
    assert run_agrees(load_gpt(t2i, collapses=collapses), t2i)


def test_a_virtual_key_of_weight_one_is_seen(t2i: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "log_count", lambda count, dtype: torch.zeros(len(count), VIRTUAL_KEYS))
    assert not run_agrees(load_gpt(t2i), t2i)


def test_identity_rotation_of_the_prefix_is_seen(t2i: Fixture) -> None:
    assert not run_agrees(load_gpt(t2i, prefix_attention="identity"), t2i)


def test_swapped_row_and_column_halves_are_seen(t2i: Fixture) -> None:
    model = load_gpt(t2i)
    assert model.rope is not None
    model.rope = model.rope.roll(model.rope.shape[1] // 2, dims=1)
    assert not run_agrees(model, t2i)


def test_half_split_rotary_pairs_are_seen(t2i: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_split(x: Tensor, table: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        cos, sin = table[:, None, ..., 0], table[:, None, ..., 1]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    monkeypatch.setattr(transformer, "apply_rope", half_split)
    assert not run_agrees(load_gpt(t2i), t2i)


@both_caches
def test_a_null_half_that_ignores_the_caption_mask_is_seen(
    t2i: Fixture, monkeypatch: pytest.MonkeyPatch, collapses: bool
) -> None:
    forward = CaptionEmbedder.forward

    def unmasked_null(self: CaptionEmbedder, condition: Condition, *, with_null: bool) -> Prefix:
        rows, mask = forward(self, condition, with_null=with_null)
        return Prefix(rows, torch.cat([mask[: len(mask) // 2], torch.ones_like(mask[len(mask) // 2 :])]))

    monkeypatch.setattr(CaptionEmbedder, "forward", unmasked_null)
    assert not run_agrees(load_gpt(t2i, collapses=collapses), t2i)


def test_stale_cache_entries_are_seen(t2i: Fixture, chunk: Fixture) -> None:
    """The scattered call rewrites K/V: without it the next token's logits differ."""
    model, tokens = load_gpt(t2i), chunk.tensors["in.tokens"]
    cache, _ = prefill(model, condition_of(t2i))
    feed(model, cache, tokens[:, :12], list(range(12)))
    assert not agrees(feed(model, cache, tokens[:, 12:13], [12]), chunk.tensors["out.next_after_scattered"])
