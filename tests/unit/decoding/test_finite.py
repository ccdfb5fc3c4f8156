"""A model whose numbers are not finite fails the image in every phase, and leaves its neighbours as they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.image_gpt import ImageGPT
from mulosd.upsample.down import AreaDown
from mulosd.upsample.pixel import PixelSpace
from tests.unit.decoding import toys

BAD = 1  # the image of three
CALLS: dict[str, Callable[[int], bool]] = {  # by the number of fed positions
    "resample": lambda width: width < 8,
    "verify": lambda width: width > 32,
}
RELEASED = MuLoSD(tau=0.05, rows_per_cycle=2, draft_window=2)


class Broken:
    """A model whose logits of one image are `value` at one code in the calls that `breaks` names."""

    def __init__(self, model: ImageGPT, breaks: Callable[[int], bool], value: float) -> None:
        self._model, self._breaks, self._value = model, breaks, value
        self.config, self.prefix, self.new_cache = model.config, model.prefix, model.new_cache

    def __call__(self, tokens: Tensor, *args: Any) -> Tensor:
        logits = self._model(tokens, *args).clone()
        if self._breaks(tokens.shape[1]):
            logits[BAD, :, 3] = self._value
        return logits


def check(job: Job, method: SamplerKnobs, subject: str) -> None:
    """Decode; the bad image names what failed, the others are those of sound models."""
    whole = toys.run(method)
    result = decode(job, method)
    reasons = job.finite.failures()
    assert [reason is None for reason in reasons] == [True, False, True]
    assert reasons[BAD] == f"{subject} are not finite (NaN or infinite)"
    for image in (0, 2):
        assert np.array_equal(result.tokens[image], whole.tokens[image])
    sound = toys.make_job()
    decode(sound, method)
    assert sound.finite.failures() == [None] * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("method", [AR(), ZipAR(window=2)], ids=repr)
def test_logits_of_the_target(method: SamplerKnobs, value: float) -> None:
    check(toys.make_job(wrap=lambda model: Broken(model, lambda _: True, value)), method, "the target's logits")


@pytest.mark.parametrize("method", [DraftOnly(), RELEASED], ids=repr)
def test_logits_of_the_drafter(method: SamplerKnobs) -> None:
    broken = Broken(toys.family().drafter, lambda _: True, float("nan"))
    check(toys.make_job(drafter=broken), method, "the drafter's logits")


@pytest.mark.parametrize(
    ("kind", "subject"), [("verify", "the target's logits at the verification"), ("resample", "the target's logits")]
)
def test_logits_of_verification_and_resampling(kind: str, subject: str) -> None:
    method = MuLoSD(tau=0.05)
    check(toys.make_job(wrap=lambda model: Broken(model, CALLS[kind], float("nan"))), method, subject)


def test_logits_of_a_refresh() -> None:
    kinds, call = [""], Engine._call

    def noted(self: Engine, kind: str, *args: Any) -> Tensor:
        kinds.append(kind)
        return call(self, kind, *args)

    with toys.patched(Engine, "_call", noted):
        job = toys.make_job(wrap=lambda model: Broken(model, lambda _: kinds[-1] == "refresh", float("nan")))
        check(job, MuLoSD(tau=0.05, rows_per_cycle=2), "the target's logits at a refresh")


def test_pixels_of_the_up_sampler() -> None:
    def enlarge(pixels: Tensor) -> Tensor:
        large = torch.nn.functional.interpolate(pixels, scale_factor=2.0, mode="bicubic", align_corners=False)
        large[BAD, 0, 0, 0] = torch.inf  # which the clamp to [-1, 1] would hide
        return large

    job = toys.make_job()
    job.upsampler = PixelSpace(toys.family().vq, 4, 2, enlarge)
    check(job, MuLoSD(tau=0.05), "the numbers of the up-sampler")


def test_pixels_that_are_scaled_down() -> None:
    class BrokenDown(AreaDown):
        def __call__(self, high: Tensor, start: int) -> Tensor:
            decoded = self.vq.decode

            def decode_one(codes: Tensor) -> Tensor:
                pixels = decoded(codes)
                pixels[BAD, 0, 0, 0] = torch.nan
                return pixels

            with toys.patched(self.vq, "decode", decode_one):
                return super().__call__(high, start)

    downsampler = BrokenDown(toys.family().vq, 8, 2)
    method = MuLoSD(tau=0.05, rows_per_cycle=2, feedback="downsample")
    check(toys.make_job(downsampler=downsampler), method, "the pixels of the scaled-down image")
