"""What must hold on a CUDA device too: noise, exactness when all is rejected, fixtures, the captured AR step."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


def test_noise_is_the_same_on_both_devices() -> None:
    import torch

    from mulosd.sampling.noise import uniform

    seeds, positions = torch.tensor([0, 2**62 + 5, -7]), torch.arange(12).reshape(3, 4)
    here = uniform(seeds, positions, 1000, stream="target", grid=16)
    there = uniform(seeds.cuda(), positions.cuda(), 1000, stream="target", grid=16)
    assert torch.equal(here, there.cpu())


def test_rejecting_everything_is_ar_on_the_device() -> None:
    """float64, so that the rounding of differently shaped calls cannot turn a draw."""
    from mulosd.methods import build_method
    from mulosd.targets import load_target

    target = load_target("tiny-mid", device="cuda", dtype="float64")
    prompts, seeds = ["a photo of a striped red circle", "a photo of two squares"], [1, 2]
    plain = target.decode(prompts, seeds, build_method("ar"))
    knobs = {"tau": 2.0, "resample": "serial", "rows_per_cycle": 1}
    speculative = target.decode(prompts, seeds, build_method("mulosd", knobs))
    for a, b in zip(plain, speculative, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert b.stats.cycles > 0
        assert b.stats.forwards_verify > 0


def test_fixtures_of_the_reference_hold_on_the_device() -> None:
    from bench.gpu import parity

    assert {name for name, case in parity("cuda").items() if not case["agrees"]} == set()


def test_the_captured_step_is_ar() -> None:
    """float64; two images in turn, so that a replay that kept the first one's seed or cache would show."""
    import torch

    from bench import gpu
    from bench.static_ar import StaticAR
    from mulosd.decoding.registry import decode
    from mulosd.methods import AR

    setup = gpu.Setup(gpu.SIZES["tiny"], "cuda", torch.float64, 1)
    models = gpu.build_models(setup, 8)
    static = StaticAR(models.model, models.condition, models.job(setup, 0).sampler)
    for seed in (3, 4):
        expected = decode(models.job(setup, seed), AR()).tokens
        assert torch.equal(static(torch.tensor([seed], device="cuda")).cpu(), torch.from_numpy(expected).flatten(1))


def test_the_bench_runs_on_the_device(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from bench.gpu import main

    options = ["--size", "tiny", "--rounds", "1", "--out", str(tmp_path)]
    assert CliRunner().invoke(main, options, catch_exceptions=False).exit_code == 0
    assert "| mulosd |" in (tmp_path / "gpu.md").read_text()
