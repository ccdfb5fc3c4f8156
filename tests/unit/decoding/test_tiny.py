"""The exact corners again, on the shipped family: real weights, flat and peaked distributions, float32."""

import numpy as np
import pytest

from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.targets import load_target
from mulosd.targets.target import Target

PROMPTS = ["a photo of a striped red circle", "a photo of two blue squares"]


@pytest.fixture(scope="module")
def mid() -> Target:
    return load_target("tiny-mid")


def tokens(target: Target, method: SamplerKnobs) -> np.ndarray:
    return np.stack([one.tokens for one in target.decode(PROMPTS, [3, 4], method)])


@pytest.fixture(scope="module")
def ar(mid: Target) -> np.ndarray:
    return tokens(mid, AR())


def test_rejecting_all_serially_is_ar(mid: Target, ar: np.ndarray) -> None:
    decoded = mid.decode(PROMPTS, [3, 4], MuLoSD(tau=1.01, resample="serial", rows_per_cycle=3))
    assert np.array_equal(np.stack([one.tokens for one in decoded]), ar)
    for one in decoded:
        assert one.stats.cycles == one.stats.forwards_verify == 3
        assert one.stats.resampled == 256


def test_zipar_as_wide_as_the_grid_is_ar(mid: Target, ar: np.ndarray) -> None:
    assert np.array_equal(tokens(mid, ZipAR(window=16)), ar)


def test_accepting_all_returns_the_draft(mid: Target) -> None:
    assert np.array_equal(tokens(mid, MuLoSD(tau=0.0)), tokens(mid, DraftOnly()))


def test_images_do_not_depend_on_their_batch(mid: Target) -> None:
    method = MuLoSD(tau=0.02, island_window=2)
    together = mid.decode(PROMPTS, [3, 4], method)
    for b, one in enumerate(together):
        alone = mid.decode(PROMPTS[b : b + 1], [3 + b], method)[0]
        assert 0 < one.stats.resampled < 256
        assert np.array_equal(alone.tokens, one.tokens)
        assert alone.stats.forwards == one.stats.forwards
