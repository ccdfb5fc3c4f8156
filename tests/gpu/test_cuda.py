"""What must hold on a CUDA device too: the same noise, and exactness of a schedule that rejects everything."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


def test_noise_is_the_same_on_both_devices() -> None:
    import torch

    from mulosd.decoding.noise import uniform

    seeds, positions = torch.tensor([0, 2**62 + 5, -7]), torch.arange(12).reshape(3, 4)
    here = uniform(seeds, positions, 1000, stream="target", grid=16)
    there = uniform(seeds.cuda(), positions.cuda(), 1000, stream="target", grid=16)
    assert torch.equal(here, there.cpu())


def test_rejecting_everything_is_ar_on_the_device() -> None:
    """float64, so that the rounding of differently shaped calls cannot turn a draw."""
    from mulosd.methods import build_method
    from mulosd.models.families import load_target

    target = load_target("tiny-mid", device="cuda", dtype="float64")
    prompts, seeds = ["a photo of a striped red circle", "a photo of two squares"], [1, 2]
    plain = target.decode(prompts, seeds, build_method("ar"))
    knobs = {"tau": 2.0, "resample": "serial", "rows_per_cycle": 1}
    speculative = target.decode(prompts, seeds, build_method("mulosd", knobs))
    for a, b in zip(plain, speculative, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert b.stats.cycles > 0
        assert b.stats.forwards_verify > 0
