"""16-bit weights: which dtype the logits have, and how far they lie from the reference."""

import pytest
import torch
from torch import Tensor

from mulosd.sampling.filters import guide
from tests.parity.fixtures import all_visible, condition_of, load, load_ar_dtok, load_gpt
from tests.parity.runs import Model, run

BF16, T2I, DTOK = load("bf16_decode"), load("gpt_t2i"), load("ar_dtok")
CAPTIONS, FEATURES = condition_of(T2I), all_visible(DTOK.tensors["in.cond9"])
TOKENS = BF16.tensors["in.tokens"]


def lies_near(ours: Tensor, reference: Tensor) -> bool:
    """Within the bound that the fixture states: CPU kernels of bfloat16 differ between builds."""
    difference = (ours.float() - reference.float()).abs()
    return bool(difference.mean() < 0.08 and difference.max() < 0.6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("collapses", [True, False], ids=["collapsed", "plain"])
def test_llamagen_computes_logits_in_float32(dtype: torch.dtype, collapses: bool) -> None:
    model = load_gpt(T2I, collapses=collapses).to(dtype)
    logits = run(model, CAPTIONS, TOKENS, 9)
    assert model.new_cache(1).kv.dtype == dtype
    assert logits.dtype == torch.float32
    assert lies_near(logits, BF16.tensors["out.gpt_t2i.logits"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_ar_dtok_computes_logits_and_guidance_in_the_models_dtype(dtype: torch.dtype) -> None:
    logits = run(load_ar_dtok(DTOK).to(dtype), FEATURES, TOKENS, 9)
    guided = guide(*logits.chunk(2, dim=1), 4.0)
    assert logits.dtype == guided.dtype == dtype
    assert lies_near(logits, BF16.tensors["out.ar_dtok.logits"])
    cond, null = BF16.tensors["out.ar_dtok.logits"].chunk(2, dim=1)
    assert torch.equal(guide(cond, null, 4.0), BF16.tensors["out.ar_dtok.guided4"])  # on equal logits it is exact
    assert not torch.equal(guide(cond.float(), null.float(), 4.0).bfloat16(), BF16.tensors["out.ar_dtok.guided4"])


def test_the_dtype_of_the_logits_is_a_choice() -> None:
    wide, narrow = load_gpt(T2I), load_gpt(T2I, logits_dtype="model")
    assert run(narrow.bfloat16(), CAPTIONS, TOKENS, 2).dtype == torch.bfloat16
    assert run(wide.double(), CAPTIONS, TOKENS, 2).dtype == torch.float64


@pytest.mark.parametrize("swap", [False, True])
def test_a_mistake_lies_outside_the_bound(swap: bool) -> None:
    """Swapped axes do, so the bound is not empty."""
    model: Model = load_gpt(T2I).bfloat16()
    assert model.rope is not None
    model.rope = model.rope.roll(model.rope.shape[1] // 2 if swap else 0, dims=1)
    assert lies_near(run(model, CAPTIONS, TOKENS, 9), BF16.tensors["out.gpt_t2i.logits"]) != swap
