"""What every decoder gets: models, conditions, seeds, samplers, and where results go."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mulosd.decoding.engine import Engine, ImageModel
from mulosd.models.condition import Condition
from mulosd.sampling.filters import Sampler
from mulosd.sampling.finite import FiniteCheck
from mulosd.types import STATUS_SAMPLED, DecodeStats, Ints

# (low [B, b, w], start) -> [B, (b - start) * ratio, w * ratio]; see `mulosd.upsample`.
Upsampler = Callable[[Tensor, int], Tensor]


@dataclass
class Job:
    """One batch to decode. `neighbours(pool_k)` gives the k-NN table [V, pool_k] of the shared codebook.

    `downsampler(high [B, b * ratio, W], start)` gives the draft rows start .. b-1 of a finished image's first rows.
    `record(tokens [B, H, W])` receives snapshots with -1 where nothing is decided yet. `finite` notes the images whose
    numbers are not, phase by phase; what else is decoded of them means nothing.
    """

    target: ImageModel
    condition: Condition
    seeds: Tensor
    sampler: Sampler
    drafter: ImageModel | None = None
    draft_sampler: Sampler = field(default_factory=Sampler)
    upsampler: Upsampler | None = None
    downsampler: Upsampler | None = None
    neighbours: Callable[[int], Tensor] | None = None
    record: Callable[[Ints], None] | None = None
    synchronize: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.batch = len(self.seeds)
        self.stats = [DecodeStats() for _ in range(self.batch)]
        self.finite = FiniteCheck(self.batch)
        grid = self.target.config.grid
        self.status = np.full((self.batch, grid, grid), STATUS_SAMPLED, np.uint8)

    def target_engine(self) -> Engine:
        """A fresh engine of the target model; its condition is embedded here, outside the decode timers."""
        return self._engine(self.target, self.sampler, "target")

    def draft_engine(self) -> Engine:
        """A fresh engine of the drafter."""
        assert self.drafter is not None
        return self._engine(self.drafter, self.draft_sampler, "draft")

    def _engine(self, model: ImageModel, sampler: Sampler, stream: str) -> Engine:
        return Engine(model, self.condition, self.seeds, sampler, self.stats, stream=stream, finite=self.finite)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of the block to `time_<phase>_s` of every image (meant for batch 1)."""
        self.synchronize()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            spent = time.perf_counter() - began
            for stats in self.stats:
                setattr(stats, f"time_{phase}_s", getattr(stats, f"time_{phase}_s") + spent)

    def snapshot(self, engine: Engine) -> None:
        """Record what is decided so far."""
        if self.record:
            shown = np.where(engine.decided, engine.tokens, -1)
            self.record(shown.reshape(self.batch, engine.grid, engine.grid))


@dataclass(frozen=True)
class Result:
    """tokens int64 [B, H, W], status uint8 [B, H, W], one DecodeStats per image."""

    tokens: Ints
    status: np.ndarray
    stats: list[DecodeStats]


def finish(job: Job, engine: Engine) -> Result:
    """The result of a job whose target tokens are all decided."""
    assert engine.decided.all()
    grid = engine.grid
    return Result(engine.tokens.reshape(job.batch, grid, grid), job.status, job.stats)


def inference(function: Callable[..., Result]) -> Callable[..., Result]:
    """Run a decoder without autograd."""
    return torch.inference_mode()(function)
