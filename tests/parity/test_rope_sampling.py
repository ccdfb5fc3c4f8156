"""The 2-D rotary table and the sampling filters, against the reference."""

import pytest
import torch
from torch import Tensor

from mulosd.models.gpt_config import GPTConfig
from mulosd.models.transformer import apply_rope, rope_table
from mulosd.sampling import filters as sampling
from mulosd.sampling.filters import Sampler
from tests.parity.fixtures import agrees, load

ROPE = load("rope2d").tensors
SAMPLING = load("sampling")
CASES = SAMPLING.config["cases"]


def table(grid: int, prefix_len: int, head_dim: int) -> Tensor:
    return rope_table(GPTConfig(head_dim, 1, 1, 8, grid, prefix_len))


@pytest.mark.parametrize(("grid", "prefix_len", "head_dim"), [(4, 1, 64), (8, 120, 64), (16, 120, 64), (4, 1, 100)])
def test_tables(grid: int, prefix_len: int, head_dim: int) -> None:
    assert agrees(table(grid, prefix_len, head_dim), ROPE[f"out.table_g{grid}_T{prefix_len}_hd{head_dim}"])


def test_rows_of_the_largest_table() -> None:
    assert agrees(table(32, 120, 64)[ROPE["in.rows_g32"]], ROPE["out.rows_g32_T120_hd64"])


@pytest.mark.parametrize("suffix", ["", "_bf16"])
def test_rotation(suffix: str) -> None:
    x = ROPE[f"in.apply_x{suffix}"].transpose(1, 2)
    rotated = apply_rope(x, table(4, 1, 64)[None]).transpose(1, 2)
    reference = ROPE[f"out.apply_g4_T1{suffix}"]
    assert rotated.dtype == reference.dtype
    assert agrees(rotated, reference)
    swapped = table(4, 1, 64).roll(16, dims=1)[None]
    assert not agrees(apply_rope(x, swapped).transpose(1, 2), reference)


def guided(case: dict[str, float]) -> Tensor:
    cond, null = SAMPLING.tensors["in.logits_2B_S_V"][:, -1].chunk(2)
    return sampling.guide(cond, null, case["cfg_scale"]) if case["cfg_scale"] > 1 else cond


def settings(case: dict[str, float]) -> Sampler:
    return Sampler(temperature=case["temperature"], top_k=int(case["top_k"]), top_p=case["top_p"])


@pytest.mark.parametrize("case", CASES, ids=[c["case"] for c in CASES])
def test_probabilities(case: dict[str, float]) -> None:
    probs = sampling.probabilities(guided(case), settings(case))
    reference = SAMPLING.tensors[f"out.{case['case']}.probs"]
    assert agrees(probs, reference)
    assert torch.equal(probs > 0, reference > 0)
    assert torch.equal(probs.argmax(-1, keepdim=True), SAMPLING.tensors[f"out.{case['case']}.argmax"])


@pytest.mark.parametrize(
    ("name", "sampler"), [("topk2", Sampler(top_k=2)), ("topk3_topp0.6", Sampler(top_k=3, top_p=0.6))]
)
def test_ties(name: str, sampler: Sampler) -> None:
    filtered = sampling.filter_logits(SAMPLING.tensors["in.tie_logits"], sampler)
    assert torch.equal(filtered, SAMPLING.tensors[f"out.tie_{name}"])


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.7, top_k=20, top_p=0.9)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_logits_are_filtered_in_float32(dtype: torch.dtype, sampler: Sampler) -> None:
    """Guidance may run in the dtype of the model, the softmax does not."""
    logits = SAMPLING.tensors["in.logits_2B_S_V"][:, -1].to(dtype)
    probs = sampling.probabilities(logits, sampler)
    assert probs.dtype == torch.float32
    assert torch.equal(probs, sampling.probabilities(logits.float(), sampler))
    assert torch.allclose(probs.sum(-1), torch.ones(len(probs)), atol=1e-6)


def test_top_p_before_top_k_is_seen() -> None:
    def swapped(logits: Tensor, sampler: Sampler) -> Tensor:
        first = sampling.filter_logits(logits, Sampler(temperature=sampler.temperature, top_p=sampler.top_p))
        return sampling.filter_logits(first, Sampler(top_k=sampler.top_k)).softmax(-1)

    wrong = [
        c["case"]
        for c in CASES
        if not agrees(swapped(guided(c), settings(c)), SAMPLING.tensors[f"out.{c['case']}.probs"])
    ]
    assert wrong, "no case tells the order of the filters"
