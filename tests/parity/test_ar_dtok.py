"""AR-DTok: conditioning, prefix lengths, logits, multi-token calls, against the reference."""

import pytest
import torch
from torch import Tensor

from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.methods import AR, SamplerKnobs, ZipAR
from mulosd.models.ar_dtok import ARDTok, NullPrefix
from mulosd.models.condition import Condition, Prefix
from mulosd.sampling.filters import Sampler
from tests.parity.fixtures import agrees, all_visible, load, load_ar_dtok
from tests.parity.runs import feed, prefill, run, start

DTOK, CHUNK = load("ar_dtok"), load("ar_dtok_chunk")
RUNS = {"cond9_cfg4": (9, 4.0), "cond9_nocfg": (9, 1.0), "cond4_cfg4": (4, 4.0)}  # name: (prefix length, guidance)


def condition(length: int = 9) -> Condition:
    return all_visible(DTOK.tensors["in.cond9"][:, :length])


def logits_of(model: ARDTok, name: str) -> Tensor:
    length, guidance = RUNS[name]
    return run(model, condition(length), DTOK.tensors[f"out.{name}.tokens"], 16, with_null=guidance > 1)


@pytest.mark.parametrize("shares_null", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_cached_decoding(name: str, shares_null: bool) -> None:
    assert agrees(logits_of(load_ar_dtok(DTOK, shares_null=shares_null), name), DTOK.tensors[f"out.{name}.logits"])


@pytest.mark.parametrize("method", [AR(), ZipAR(window=4)], ids=["ar", "zipar"])
@pytest.mark.parametrize("name", RUNS)
def test_decoders_reproduce_the_greedy_tokens(name: str, method: SamplerKnobs) -> None:
    length, guidance = RUNS[name]
    job = Job(load_ar_dtok(DTOK), condition(length), torch.tensor([5, 6]), Sampler(guidance=guidance, top_k=1))
    tokens = torch.from_numpy(decode(job, method).tokens.reshape(2, -1))
    assert torch.equal(tokens, DTOK.tensors[f"out.{name}.tokens"].long())


def test_keys_of_the_cache() -> None:
    model = load_ar_dtok(DTOK)
    cache, _ = prefill(model, condition(), with_null=False)
    for j in range(15):
        feed(model, cache, DTOK.tensors["out.cond9_nocfg.tokens"][:, j : j + 1], [j])
    assert agrees(cache.kv[0, 0, :, :, :24], DTOK.tensors["out.cond9_nocfg.k_cache_layer0"][:, :, :24])


def test_the_uncached_pass() -> None:
    """9 features and 15 tokens; teacher forcing does not feed the last of its tokens, so one more is given."""
    model, idx = load_ar_dtok(DTOK), DTOK.tensors["in.full.idx"]
    rows = model.prefix(condition(), with_null=False).rows
    assert agrees(model.forward_train(rows, torch.cat([idx, idx[:, :1]], dim=1)), DTOK.tensors["out.full.logits"])


def test_chunked_and_scattered_calls() -> None:
    model, tokens, out = load_ar_dtok(DTOK), CHUNK.tensors["in.tokens"], CHUNK.tensors
    cache, _ = prefill(model, condition())
    sequential = torch.cat([feed(model, cache, tokens[:, p : p + 1], [p]) for p in range(12)], dim=1)
    assert agrees(sequential, out["out.sequential_logits"])
    cache, _ = prefill(model, condition())
    chunks = [range(5), range(5, 12)]
    chunked = torch.cat([feed(model, cache, tokens[:, c.start : c.stop], list(c)) for c in chunks], dim=1)
    assert agrees(chunked, out["out.chunked_logits"])
    scattered = feed(model, cache, out["in.sub_tokens"], out["in.sub_positions"].tolist())
    assert agrees(scattered, out["out.scattered_logits"])
    assert agrees(feed(model, cache, tokens[:, 12:13], [12]), out["out.next_after_scattered"])


def test_the_prefix_may_ride_in_the_first_call() -> None:
    model, tokens = load_ar_dtok(DTOK), CHUNK.tensors["in.tokens"].repeat(2, 1)[:, :12]
    cache, rows = start(model, condition())
    where = torch.arange(12).expand(4, -1)
    logits = model(tokens, where, where, cache, torch.ones(12, 12, dtype=torch.bool).tril().expand(4, -1, -1), rows)
    assert agrees(logits[:, 1:], CHUNK.tensors["out.sequential_logits"])


def test_each_image_alone_gives_the_same_logits() -> None:
    for b in range(2):
        alone = all_visible(DTOK.tensors["in.cond9"][b : b + 1])
        logits = run(load_ar_dtok(DTOK), alone, DTOK.tensors["out.cond9_cfg4.tokens"][b : b + 1], 16)
        assert agrees(logits, DTOK.tensors["out.cond9_cfg4.logits"][:, [b, b + 2]])


# Each of the following mistakes must be seen by the comparison above: it could pass silently.


def test_image_positions_that_start_at_the_longest_prefix_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    embed = ARDTok.embed
    monkeypatch.setattr(ARDTok, "embed", lambda self, tokens, positions, _: embed(self, tokens, positions, 9))
    model = load_ar_dtok(DTOK)
    assert not agrees(logits_of(model, "cond4_cfg4"), DTOK.tensors["out.cond4_cfg4.logits"])
    assert agrees(logits_of(model, "cond9_cfg4"), DTOK.tensors["out.cond9_cfg4.logits"])


def test_a_null_form_without_the_bias_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = ARDTok.prefix

    def without_bias(self: ARDTok, condition: Condition, *, with_null: bool) -> Prefix:
        rows, mask = forward(self, condition, with_null=with_null)
        half = len(rows) // 2
        return Prefix(torch.cat([rows[:half], rows[half:] - self.clip_proj.bias]), mask)

    monkeypatch.setattr(ARDTok, "prefix", without_bias)
    assert not agrees(
        logits_of(load_ar_dtok(DTOK, shares_null=False), "cond9_cfg4"), DTOK.tensors["out.cond9_cfg4.logits"]
    )


def test_a_kept_null_prefix_without_the_bias_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ARDTok._null_prefix

    def without_bias(self: ARDTok, length: int) -> NullPrefix:
        bias = self.clip_proj.bias.clone()
        self.clip_proj.bias.zero_()
        null = own(self, length)
        self.clip_proj.bias.copy_(bias)
        return null

    monkeypatch.setattr(ARDTok, "_null_prefix", without_bias)
    assert not agrees(logits_of(load_ar_dtok(DTOK), "cond9_cfg4"), DTOK.tensors["out.cond9_cfg4.logits"])
