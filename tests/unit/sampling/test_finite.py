"""Numbers that are not finite mark their image and phase, and no other."""

import pytest
import torch

from mulosd.sampling.finite import FiniteCheck, where_finite

BAD = [float("nan"), float("inf"), -float("inf")]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number_marks_its_image_and_the_first_phase(bad: float, dtype: torch.dtype) -> None:
    check = FiniteCheck(3)
    logits = torch.randn(3, 2, 700).to(dtype)
    check.see("draft", logits)
    broken = logits.clone()
    broken[1, 1, 350] = bad
    check.see("verify", broken)
    check.see("resample", broken)
    check.see("resample", logits)  # what came after does not mend it
    assert check.failures() == [None, "the target's logits at the verification are not finite (NaN or infinite)", None]


@pytest.mark.parametrize("bad", BAD)
def test_rows_that_mean_nothing_are_left_out(bad: float) -> None:
    check = FiniteCheck(2)
    logits = torch.zeros(2, 3, 5)
    logits[:, 2] = bad
    real = torch.tensor([[True, True, False], [True, True, True]])
    check.see("draft", logits, real)
    assert check.failures() == [None, "the drafter's logits are not finite (NaN or infinite)"]


def test_what_the_host_knows_counts_too() -> None:
    check = FiniteCheck(2)
    assert check.failures() == [None, None]
    check.fail("upsample", [1])
    check.see("own", torch.tensor([[1.0], [torch.nan]]))
    assert check.failures() == [None, "the numbers of the up-sampler are not finite (NaN or infinite)"]
    check = FiniteCheck(1)
    check.see("own", torch.full((1, 2), torch.nan))
    assert check.failures() == ["the numbers of the phase own are not finite (NaN or infinite)"]


def test_codes_of_a_broken_image_are_minus_one() -> None:
    codes = torch.arange(12).reshape(3, 2, 2)
    fine, broken = torch.ones(3, 4, 5), torch.ones(3, 4, 5)
    broken[2, 3, 1] = torch.inf
    assert torch.equal(where_finite(codes, fine), codes)
    assert torch.equal(where_finite(codes, fine, broken)[:2], codes[:2])
    assert (where_finite(codes, fine, broken)[2] == -1).all()
