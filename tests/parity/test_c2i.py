"""LlamaGen's class-to-image GPT, against the reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.decoding.verify import nearest_codes
from mulosd.methods import AR, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.conditioning import ClassEmbedder
from mulosd.sampling.filters import Sampler, guide
from tests.parity.fixtures import agrees, all_visible, load, load_gpt
from tests.parity.runs import run

C2I = load("gpt_c2i")
LABELS = all_visible(C2I.tensors["in.gen.labels"][:, None])
SCALE = C2I.config["cfg_scale"]


def test_the_uncached_pass() -> None:
    """Class token and 16 image tokens; teacher forcing does not feed the last of its tokens, so one more is given."""
    model, idx = load_gpt(C2I), C2I.tensors["in.full.idx"]
    prefix = model.prefix(all_visible(C2I.tensors["in.full.labels"][:, None]), with_null=False)
    logits = model.forward_train(prefix.rows, torch.cat([idx, idx[:, :1]], dim=1))
    assert agrees(logits, C2I.tensors["out.full.logits"])


@pytest.mark.parametrize("collapses", [True, False], ids=["collapsed", "plain"])
@pytest.mark.parametrize("name", ["gen", "gen_interval3"])
def test_cached_decoding(name: str, collapses: bool) -> None:
    logits = run(load_gpt(C2I, collapses=collapses), LABELS, C2I.tensors[f"out.{name}.tokens"], 16)
    assert agrees(logits, C2I.tensors[f"out.{name}.logits_2B"])


def test_the_decoder_reproduces_the_greedy_tokens() -> None:
    job = Job(load_gpt(C2I), LABELS, torch.tensor([5, 6, 7]), Sampler(guidance=SCALE, top_k=1))
    tokens = torch.from_numpy(decode(job, AR()).tokens.reshape(3, -1))
    assert torch.equal(tokens, C2I.tensors["out.gen.tokens"].long())


@pytest.mark.parametrize(
    "method",
    [
        AR(),
        ZipAR(window=4),
        MuLoSD(tau=2.0, resample="serial", rows_per_cycle=1),
        MuLoSD(tau=2.0, rejection="raster-redraft"),
    ],
    ids=["ar", "zipar", "serial", "redraft"],
)
def test_guidance_is_dropped_by_position_whatever_decides_it(method: SamplerKnobs) -> None:
    """Decoders of any order give the greedy tokens of the reference under cfg_interval 3."""
    model = load_gpt(C2I)
    codebook = F.normalize(torch.randn(model.config.vocab_size, 4), dim=-1)
    job = Job(
        model,
        LABELS,
        torch.tensor([5, 6, 7]),
        Sampler(guidance=SCALE, top_k=1, cfg_interval=3),
        drafter=model,
        upsampler=lambda low, start: low[:, start:],
        neighbours=lambda pool_k: nearest_codes(codebook, pool_k),
    )
    tokens = torch.from_numpy(decode(job, method).tokens.reshape(3, -1))
    assert torch.equal(tokens, C2I.tensors["out.gen_interval3.tokens"].long())


def test_another_guidance_interval_is_seen() -> None:
    for interval in (-1, 2, 4):
        job = Job(
            load_gpt(C2I), LABELS, torch.tensor([5, 6, 7]), Sampler(guidance=SCALE, top_k=1, cfg_interval=interval)
        )
        tokens = torch.from_numpy(decode(job, AR()).tokens.reshape(3, -1))
        assert not torch.equal(tokens, C2I.tensors["out.gen_interval3.tokens"].long()), interval


def test_a_guidance_interval_counts_from_the_second_token() -> None:
    """cfg_interval 3: the first token and those of index 0..3 behind it are guided, the others are not."""

    def greedy(logits: Tensor, num_guided: int) -> Tensor:
        cond, null = logits.chunk(2, dim=1)
        chosen = torch.cat([guide(cond, null, SCALE)[:num_guided], cond[num_guided:]])
        return chosen.argmax(-1).T.int()

    out = C2I.tensors
    assert torch.equal(greedy(out["out.gen_interval3.logits_2B"], 5), out["out.gen_interval3.tokens"])
    assert not torch.equal(greedy(out["out.gen_interval3.logits_2B"], 6), out["out.gen_interval3.tokens"])
    assert torch.equal(greedy(out["out.gen.logits_2B"], 16), out["out.gen.tokens"])


def test_another_null_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_gpt(C2I)
    assert isinstance(model.cls_embedding, ClassEmbedder)
    model.cls_embedding.embedding_table.weight[-1] = model.cls_embedding.embedding_table.weight[0]
    assert not agrees(run(model, LABELS, C2I.tensors["out.gen.tokens"], 16), C2I.tensors["out.gen.logits_2B"])
