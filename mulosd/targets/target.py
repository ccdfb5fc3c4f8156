"""A loaded target: its models on a device, and the decoding of prompts into images."""

import resource
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mulosd.decoding.job import Job, Upsampler
from mulosd.decoding.neighbours import NeighbourTable
from mulosd.decoding.registry import decode
from mulosd.errors import DecodingFailed
from mulosd.families.card import Card
from mulosd.methods import AR, SamplerKnobs
from mulosd.methods.base import Upsampling
from mulosd.methods.cost import Sampling
from mulosd.models.condition import Condition
from mulosd.models.image_gpt import ImageGPT, on_grid
from mulosd.models.vq import VQModel
from mulosd.sampling.filters import Sampler
from mulosd.sampling.finite import FiniteCheck
from mulosd.text import build_encoder
from mulosd.text.encoder import Encoder
from mulosd.types import Decoded, Ints, PromptTokens
from mulosd.upsample import build_upsampler
from mulosd.upsample.down import AreaDown


class Target:
    """Target model, drafter and tokenizer of one card; `decode` is the only door.

    An image depends only on its prompt, seed and method; bit equality across machines also needs the
    same batch shape and thread count.
    """

    def __init__(self, card: Card, vq: VQModel, model: ImageGPT, load_drafter: Callable[[], ImageGPT] | None) -> None:
        self.card, self.vq, self.model, self._load_drafter = card, vq, model, load_drafter
        self._neighbours = NeighbourTable(vq.quantize.codebook())
        self._upsamplers: dict[Upsampling, Upsampler] = {}

    @cached_property
    def drafter(self) -> ImageGPT | None:
        """The drafter's checkpoint, loaded when first asked for; None where the family has none."""
        return self._load_drafter() if self._load_drafter else None

    @cached_property
    def _self_drafter(self) -> ImageGPT:
        assert self.card.draft_grid is not None
        return on_grid(self.model, self.card.draft_grid)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.output.weight.device

    def decode(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        method: SamplerKnobs,
        *,
        frames: bool = False,
        condition: Condition | None = None,
    ) -> list[Decoded]:
        """Decode one image per prompt as one batch. seeds: int64 each. `frames` keeps snapshots per step.

        condition: what the encoder made of the prompts before; without it they are encoded here. `time_condition_s` is
        the time that was spent here, for the whole batch. DecodingFailed where logits, pixels or anything between are
        not finite: it holds the other images of the batch, which are what they would be without the failed ones.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        self.check(method)
        self._reset_peak()
        began = time.perf_counter()
        failed: tuple[int, ...] = ()
        read: tuple[PromptTokens | None, ...] = ()
        if condition is None:
            encoded = self._encoder.encode(prompts, seeds)
            condition, failed, read = encoded.condition, encoded.failed, encoded.tokens
        condition = self._placed(condition)
        time_condition = time.perf_counter() - began
        shots: list[Ints] = []
        job = self._job(condition, seeds, method, shots if frames else None)
        job.finite.fail("condition", failed)
        result = decode(job, method)
        with job.timed("detokenize"), torch.inference_mode():
            pixels = self.vq.decode(torch.from_numpy(result.tokens).to(self.device))
            job.finite.see("detokenize", pixels)
            images = to_uint8(pixels, self.card.pixel_rounding)
        peak = self._peak_mib()
        decoded: list[Decoded] = []
        for b, stats in enumerate(result.stats):
            stats.time_condition_s, stats.peak_mib = time_condition, peak
            own = [shot[b].astype(np.int32) for shot in shots]
            tokens = result.tokens[b].astype(np.int32)
            decoded.append(Decoded(tokens, images[b], result.status[b], stats, own, read[b] if read else None))
        self._check_finite(job.finite, decoded)
        return decoded

    def _check_finite(self, finite: FiniteCheck, decoded: Sequence[Decoded]) -> None:
        reasons = finite.failures()
        if not any(reasons):
            return
        dtype = str(self.model.output.weight.dtype).removeprefix("torch.")
        advice = "; decode in bfloat16 or float32: float16 ends at 65504" if dtype == "float16" else ""
        whys = [reason and f"{reason} in {dtype}{advice}" for reason in reasons]
        failed = [why for why in whys if why]
        results = [why or image for why, image in zip(whys, decoded, strict=True)] if decoded else ()
        raise DecodingFailed(
            f"{self.card.target_id}: {len(failed)} of {len(whys)} images failed: {failed[0]}.", results
        )

    @torch.inference_mode()
    def first_codes(self, prompts: Sequence[str], seeds: Sequence[int]) -> Ints:
        """Codes [B] of the first cell: for one forward, a try of encoder, prefix, model and sampler."""
        encoded = self._encoder.encode(prompts, seeds)
        job = self._job(self._placed(encoded.condition), seeds, AR(), None)
        job.finite.fail("condition", encoded.failed)
        engine = job.target_engine()
        start = np.zeros((len(prompts), 1), np.int64)
        codes = engine.draw(engine.start_logits("resample")[:, None], start)[:, 0]
        self._check_finite(job.finite, ())
        return codes

    def detokenize(self, tokens: Ints) -> np.ndarray:
        """Codes [H, W] -> uint8 image; undecided cells (-1) are painted mid-grey."""
        known = torch.from_numpy(np.maximum(tokens, 0)).long()[None].to(self.device)
        with torch.inference_mode():
            image: np.ndarray = to_uint8(finite(self.vq.decode(known)), self.card.pixel_rounding)[0]
        stride = image.shape[0] // tokens.shape[0]
        hidden = np.kron(tokens < 0, np.ones((stride, stride), bool))
        image[hidden] = 128
        return image

    def check(self, method: SamplerKnobs) -> None:
        """Refuse a method that this target cannot run (`mulosd.methods.SamplerKnobs.check_fit`)."""
        method.check_fit(self.card)

    def _placed(self, staged: Condition) -> Condition:
        return self._encoder.features(Condition(staged.values.to(self.device), staged.mask.to(self.device)))

    @cached_property
    def _encoder(self) -> Encoder:
        dtype = str(self.model.output.weight.dtype).removeprefix("torch.")
        return build_encoder(self.card, device=str(self.device), dtype=dtype)

    def _job(self, condition: Condition, seeds: Sequence[int], method: SamplerKnobs, shots: list[Ints] | None) -> Job:
        preset = self.card.sampler
        job = Job(
            self.model,
            condition,
            torch.tensor(list(seeds), dtype=torch.int64, device=self.device),
            _sampler(method.target_sampling(preset), method, cfg_interval=method.cfg_interval),
            drafter=self._drafter_of(method),
            draft_sampler=_sampler(method.draft_sampling(preset), method),
            upsampler=self._upsampler(method.upsampling()),
            downsampler=self._downsampler() if method.downsamples() else None,
            neighbours=self._neighbours if method.needs.neighbours else None,
            record=None if shots is None else lambda tokens: shots.append(tokens.copy()),
            synchronize=torch.cuda.synchronize if self.device.type == "cuda" else lambda: None,
        )
        if condition.values.is_floating_point():
            job.finite.see("condition", condition.values)
        return job

    def _drafter_of(self, method: SamplerKnobs) -> ImageGPT | None:
        source = method.drafted_by()
        return None if source is None else self._self_drafter if source == "self" else self.drafter

    def _upsampler(self, chosen: Upsampling | None) -> Upsampler | None:
        if chosen is None:
            return None
        if chosen not in self._upsamplers:
            assert self.card.draft_grid is not None
            assert self.card.ratio is not None
            self._upsamplers[chosen] = build_upsampler(
                chosen.name,
                vq=self.vq,
                draft_grid=self.card.draft_grid,
                ratio=self.card.ratio,
                sr_model=chosen.sr_model,
                card=self.card,
            )
        return self._upsamplers[chosen]

    def _downsampler(self) -> Upsampler:
        assert self.card.ratio is not None
        return AreaDown(self.vq, self.card.grid, self.card.ratio)

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak_mib(self) -> float:
        """Peak of the device's allocator; on a CPU the peak resident size of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _sampler(sampling: Sampling | None, method: SamplerKnobs, cfg_interval: int = -1) -> Sampler:
    guidance, temperature, top_k, top_p = sampling or (1.0, 1.0, 0, 1.0)
    return Sampler(guidance, temperature, top_k, top_p, cfg_interval, method.logits_dtype)


def finite(pixels: Tensor) -> Tensor:
    """The pixels themselves; DecodingFailed where one is not finite, as it would be drawn black."""
    if not bool(pixels.isfinite().all()):
        raise DecodingFailed("the decoded pixels are not finite (NaN or infinite); use other weights or another dtype.")
    return pixels


def to_uint8(pixels: Tensor, rounding: str = "nearest") -> np.ndarray:
    """[B, 3, height, width] in about [-1, 1] -> uint8 [B, height, width, 3], in float32.

    "nearest": clamp(127.5 x + 128) cut off, as LlamaGen; "down": 255 clamp(x / 2 + 1 / 2) cut off, as Tar.
    """
    wide = pixels.float()
    scaled = 127.5 * wide + 128.0 if rounding == "nearest" else 255.0 * (0.5 * wide + 0.5).clamp(0, 1)
    return scaled.clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous().cpu().numpy()
