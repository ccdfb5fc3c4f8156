"""A loaded target: its models on a device, and the decoding of prompts into images."""

import resource
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mulosd.decoding import verify
from mulosd.decoding.engine import Ints
from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.decoding.sampling import Sampler
from mulosd.errors import ConfigError
from mulosd.methods import DraftOnly, MuLoSD, SamplerKnobs
from mulosd.models.conditioning import Condition
from mulosd.models.families import Card
from mulosd.models.image_gpt import ImageGPT
from mulosd.models.vq import VQModel
from mulosd.scenes.words import encode_words
from mulosd.types import Decoded
from mulosd.upsample import Upsampler, build_upsampler

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class Target:
    """Target model, drafter and tokenizer of one card; `decode` is the only door.

    An image depends on its prompt, seed and method alone; bit equality across machines also needs the
    same batch shape and thread count (architecture 4).
    """

    def __init__(self, card: Card, vq: VQModel, model: ImageGPT, drafter: ImageGPT | None) -> None:
        self.card, self.vq, self.model, self.drafter = card, vq, model, drafter
        self._neighbours: dict[int, Tensor] = {}
        self._upsamplers: dict[str, Upsampler] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.output.weight.device

    def decode(
        self, prompts: Sequence[str], seeds: Sequence[int], method: SamplerKnobs, *, frames: bool = False
    ) -> list[Decoded]:
        """Decode one image per prompt as one batch. seeds: int64 each. `frames` keeps snapshots per step."""
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        self.check(method)
        self._reset_peak()
        began = time.perf_counter()
        condition = self._condition(prompts)
        time_condition = time.perf_counter() - began
        shots: list[Ints] = []
        job = self._job(condition, seeds, method, shots if frames else None)
        result = decode(job, method)
        with job.timed("detokenize"), torch.inference_mode():
            pixels = self.vq.decode(torch.from_numpy(result.tokens).to(self.device))
            images = to_uint8(pixels)
        peak = self._peak_mib()
        decoded = []
        for b, stats in enumerate(result.stats):
            stats.time_condition_s, stats.peak_mib = time_condition, peak
            own = [shot[b].astype(np.int32) for shot in shots]
            decoded.append(Decoded(result.tokens[b].astype(np.int32), images[b], result.status[b], stats, own))
        return decoded

    def detokenize(self, tokens: Ints) -> np.ndarray:
        """Codes [H, W] -> uint8 image; undecided cells (-1) are painted mid-grey."""
        known = torch.from_numpy(np.maximum(tokens, 0)).long()[None].to(self.device)
        with torch.inference_mode():
            image: np.ndarray = to_uint8(self.vq.decode(known))[0]
        stride = image.shape[0] // tokens.shape[0]
        hidden = np.kron(tokens < 0, np.ones((stride, stride), bool))
        image[hidden] = 128
        return image

    def check(self, method: SamplerKnobs) -> None:
        """Refuse a method that this target cannot run (no drafter, more neighbours than codes)."""
        if isinstance(method, DraftOnly) and self.drafter is None:
            raise ConfigError(
                f"{self.card.target_id} has no drafter, so method {method.name!r} cannot run; use ar or zipar."
            )
        if isinstance(method, MuLoSD) and method.pool_k > self.card.codebook_size:
            raise ConfigError(
                f"mulosd.pool_k = {method.pool_k} exceeds the {self.card.codebook_size} codes of {self.card.target_id}."
            )

    def _condition(self, prompts: Sequence[str]) -> Condition:
        ids = torch.tensor([encode_words(prompt) for prompt in prompts], device=self.device)
        return Condition(ids, torch.ones_like(ids, dtype=torch.bool))

    def _job(self, condition: Condition, seeds: Sequence[int], method: SamplerKnobs, shots: list[Ints] | None) -> Job:
        preset = self.card.sampler
        draft_guidance = getattr(method, "draft_guidance", None)
        sampler = Sampler(
            guidance=preset["guidance"] if method.guidance is None else method.guidance,
            temperature=preset["temperature"] if method.temperature is None else method.temperature,
            top_k=int(preset["top_k"] if method.top_k is None else method.top_k),
            top_p=preset["top_p"] if method.top_p is None else method.top_p,
        )
        draft_sampler = Sampler(
            guidance=preset["draft_guidance"] if draft_guidance is None else draft_guidance,
            temperature=sampler.temperature,
            top_k=sampler.top_k,
            top_p=sampler.top_p,
        )
        return Job(
            self.model,
            condition,
            torch.tensor(list(seeds), dtype=torch.int64, device=self.device),
            sampler,
            drafter=self.drafter,
            draft_sampler=draft_sampler,
            upsampler=self._upsampler(method.upsampler) if isinstance(method, DraftOnly) else None,
            neighbours=self._nearest,
            record=None if shots is None else lambda tokens: shots.append(tokens.copy()),
            synchronize=torch.cuda.synchronize if self.device.type == "cuda" else lambda: None,
        )

    def _nearest(self, pool_k: int) -> Tensor:
        if pool_k not in self._neighbours:
            self._neighbours[pool_k] = verify.nearest_codes(self.vq.quantize.codebook(), pool_k)
        return self._neighbours[pool_k]

    def _upsampler(self, name: str) -> Upsampler:
        if name not in self._upsamplers:
            assert self.drafter is not None
            grid = self.drafter.config.grid
            ratio = self.card.grid // grid
            self._upsamplers[name] = build_upsampler(name, vq=self.vq, draft_grid=grid, ratio=ratio)
        return self._upsamplers[name]

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak_mib(self) -> float:
        """Peak of the device's allocator; on a CPU the peak resident size of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def to_uint8(pixels: Tensor) -> np.ndarray:
    """[B, 3, height, width] in about [-1, 1] -> uint8 [B, height, width, 3] by clamp(127.5 x + 128) (models.md 2.4)."""
    scaled = (127.5 * pixels.float() + 128.0).clamp(0, 255).to(torch.uint8)
    return scaled.movedim(1, -1).contiguous().cpu().numpy()
