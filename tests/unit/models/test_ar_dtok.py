"""AR-DTok under the decoders: a target and a drafter of shared features, prefixes of any length, precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding import verify
from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.methods import AR, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.ar_dtok import ARDTok
from mulosd.models.condition import Condition
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.transformer import Transformer
from mulosd.sampling.filters import Sampler
from mulosd.upsample import build_upsampler
from tests.parity.fixtures import all_visible
from tests.unit.decoding import toys

LONGEST = 9
METHODS = {
    "ar": AR(),
    "zipar": ZipAR(window=2),
    "mulosd": MuLoSD(tau=0.05, pool_k=2, island_window=2),
    "mulosd-rejects-all": MuLoSD(tau=2.0, resample="serial", rows_per_cycle=1),
}


def ar_dtok(grid: int, dtype: torch.dtype = torch.float64, logits_dtype: Any = "model") -> ARDTok:
    torch.manual_seed(grid)
    config = GPTConfig(16, 2, 2, toys.CODES, grid, LONGEST, 32, positions="learned", logits_dtype=logits_dtype)
    model = ARDTok(config, 6)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3 if weight.ndim > 1 else 1.0)
    return model.to(dtype).eval().requires_grad_(False)


def job(length: int, images: tuple[int, ...] = (0, 1), dtype: torch.dtype = torch.float64) -> Job:
    vq = toys.family(4, dtype).vq
    features = torch.randn(2, length, 6, generator=torch.Generator().manual_seed(3))[list(images)]
    return Job(
        ar_dtok(8, dtype),
        Condition(features, torch.ones(features.shape[:2], dtype=torch.bool)),
        torch.tensor([11, 12])[list(images)],
        Sampler(guidance=4.0),
        drafter=ar_dtok(4, dtype),
        draft_sampler=Sampler(guidance=4.0),
        upsampler=build_upsampler("bicubic", vq=vq, draft_grid=4, ratio=2),
        neighbours=lambda pool_k: verify.nearest_codes(vq.quantize.codebook(), pool_k),
    )


@pytest.mark.parametrize("length", [LONGEST, 4])
@pytest.mark.parametrize("name", METHODS)
def test_an_image_does_not_depend_on_its_batch(name: str, length: int) -> None:
    both = decode(job(length), METHODS[name]).tokens
    alone = [decode(job(length, (b,)), METHODS[name]).tokens[0] for b in range(2)]
    assert np.array_equal(both, np.stack(alone))
    assert not np.array_equal(both[0], both[1])


@pytest.mark.parametrize("length", [LONGEST, 4])
@pytest.mark.parametrize("name", METHODS)
def test_a_kept_null_prefix_gives_the_same_images(name: str, length: int) -> None:
    shared, plain = job(length), job(length)
    for model in (plain.target, plain.drafter):
        model.shares_null = False
    one, other = (decode(both, METHODS[name]) for both in (shared, plain))
    assert np.array_equal(one.tokens, other.tokens)
    assert one.stats[0].forwards == other.stats[0].forwards
    assert one.stats[0].tokens_fed == other.stats[0].tokens_fed


def prefix_rows_fed(model: ARDTok, monkeypatch: pytest.MonkeyPatch, *, images: int, times: int) -> int:
    """Rows of all prefixes that the trunk runs in `times` decodes of a batch."""
    fed: list[int] = []
    trunk = Transformer.features

    def counted(self: Transformer, *args: Any) -> Tensor:
        fed.append(0 if args[5:] in ((), (None,)) else len(args[5]))
        return trunk(self, *args)

    monkeypatch.setattr(Transformer, "features", counted)
    for _ in range(times):
        features = torch.randn(images, 4, 6)
        decode(Job(model, all_visible(features), torch.arange(images), Sampler(guidance=4.0)), AR())
    return sum(fed)


def test_the_null_prefix_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ar_dtok(4)
    assert prefix_rows_fed(model, monkeypatch, images=3, times=2) == 1 + 2 * 3
    model.shares_null = False
    assert prefix_rows_fed(model, monkeypatch, images=3, times=2) == 2 * 6


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.clip_proj.bias.add_(1.0),
        lambda model: model.load_state_dict(ar_dtok(8).state_dict() | {"abs_pe": model.abs_pe + 1}, assign=True),
        lambda model: model.half().double(),
    ],
    ids=["in place", "loaded", "rounded"],
)
def test_a_null_prefix_of_other_weights_is_not_kept(change: Callable[[ARDTok], Any]) -> None:
    model = ar_dtok(4)
    before = model._null_prefix(4)
    assert model._null_prefix(4) is before
    assert model._null_prefix(5).kv.shape[4] == 5
    change(model)
    after = model._null_prefix(4)
    assert not torch.equal(after.kv, before.kv)
    model._null = None
    assert torch.equal(model._null_prefix(4).kv, after.kv)


def test_padded_conditions_share_no_null_prefix() -> None:
    condition = all_visible(torch.randn(1, 4, 6))
    condition.mask[0, 0] = False
    assert len(ar_dtok(4).prefix(condition, with_null=True).rows) == 2


@pytest.mark.parametrize("method", [METHODS["mulosd-rejects-all"]], ids=["serial"])
def test_rejecting_all_is_plain_decoding(method: SamplerKnobs) -> None:
    assert np.array_equal(decode(job(4), method).tokens, decode(job(4), AR()).tokens)


def test_the_length_of_the_prefix_matters() -> None:
    """The same features, once with zero rows behind them: other positions, other images."""
    assert not np.array_equal(decode(job(LONGEST), AR()).tokens, decode(job(4), AR()).tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_weights_decode(dtype: torch.dtype) -> None:
    tokens = decode(job(4, dtype=dtype), METHODS["mulosd"]).tokens
    assert tokens.shape == (2, 8, 8)
    assert len(np.unique(tokens)) > 4


def guided_logits(model: ARDTok, logits_dtype: str | None) -> Tensor:
    features = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(guidance=4.0, logits_dtype=logits_dtype)
    return Job(model, all_visible(features), torch.tensor([1, 2]), sampler).target_engine().start_logits("resample")


@pytest.mark.parametrize(("chosen", "of_card"), [("float32", "model"), ("model", "float32")])
def test_a_sampler_chooses_the_dtype_of_logits_as_a_card_does(chosen: str, of_card: str) -> None:
    expected = guided_logits(ar_dtok(4, torch.bfloat16, chosen), None)
    found = guided_logits(ar_dtok(4, torch.bfloat16, of_card), chosen)
    assert found.dtype == expected.dtype == (torch.float32 if chosen == "float32" else torch.bfloat16)
    assert torch.equal(found, expected)
    assert not torch.equal(found.float(), guided_logits(ar_dtok(4, torch.bfloat16, of_card), None).float())
    assert guided_logits(ar_dtok(4), chosen).dtype == torch.float64  # never narrower than the weights


def test_the_last_cell_has_no_place() -> None:
    """The reference's table ends before it; a decoder that fed it would be wrong."""
    model = ar_dtok(4)
    last = torch.tensor([[15]])
    assert model.embed(last - 1, last - 1, LONGEST).shape == (1, 1, 16)
    with pytest.raises(IndexError):
        model.embed(last, last, LONGEST)


@pytest.mark.parametrize("wrong", [{"positions": "rotary"}, {"positions": "learned", "axial_positions": True}])
def test_other_positions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="learned positions only"):
        ARDTok(GPTConfig(16, 2, 2, 32, 4, LONGEST, 32, **wrong), 6)
