"""The AR step with static shapes, captured once and replayed: a baseline whose host never waits.

A step feeds the last token, guides, filters, draws and stores the next one without telling the host. On a CUDA device
it is a CUDA graph per span of the cache, so that no step attends to more than an eighth of the grid too much; on a CPU
the same step runs eagerly. Noise and counters are those of `ar`: N forwards, and in float64 the same tokens.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mulosd.models.condition import Condition
from mulosd.models.image_gpt import ImageGPT
from mulosd.sampling import filters as sampling
from mulosd.sampling.filters import Sampler

SPANS = 8
WARMUP_STEPS = 3  # on a side stream, as a capture needs


class StaticAR:
    """Decodes batches of one condition and one size; the captured steps are kept between calls."""

    @torch.inference_mode()
    def __init__(self, model: ImageGPT, condition: Condition, sampler: Sampler) -> None:
        self.model, self.sampler = model, sampler
        self.is_guided = sampler.guidance > 1.0
        self.prefix = model.prefix(condition, with_null=self.is_guided)
        self.cache = model.new_cache(len(self.prefix.mask))
        self.cache.prefix_mask = self.prefix.mask.bool()
        config, device = model.config, self.cache.kv.device
        self.seeds = torch.zeros(len(condition), dtype=torch.int64, device=device)
        self.tokens = torch.zeros(len(condition), config.num_tokens, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)  # of the token that the next step feeds
        self.span = -(-config.num_tokens // SPANS)
        ends = range(self.span, config.num_tokens + self.span, self.span)
        self._steps = [self._captured(min(end, config.num_tokens)) for end in ends]

    @torch.inference_mode()
    def __call__(self, seeds: Tensor) -> Tensor:
        """Tokens [B, N] under seeds int64 [B]; a view that the next call overwrites."""
        self.seeds.copy_(seeds)
        none = torch.zeros(len(self.prefix.mask), 0, dtype=torch.int64, device=self.seeds.device)
        logits = self.model(none, none, none, self.cache, none[..., None].bool(), self.prefix.rows)
        self.position.fill_(-1)
        self._decide(logits)
        for position in range(self.tokens.shape[1] - 1):
            self._steps[position // self.span]()
        return self.tokens

    def _step(self, span: int) -> None:
        tokens = self.tokens.index_select(1, self.position)
        rows = len(self.prefix.mask)
        where = self.position.expand(rows, 1)
        mask = (torch.arange(span, device=where.device) <= self.position).expand(rows, 1, span)
        fed = tokens.repeat(rows // len(tokens), 1)
        self._decide(self.model(fed, where, where, self.cache, mask))

    def _decide(self, logits: Tensor) -> None:
        """Draw the cell after `position` from logits [R, 1, V] and move there."""
        if self.is_guided:
            logits = sampling.guide_up_to(logits, self.position.expand(1, 1), self.sampler)
        self.position.add_(1)
        where, grid = self.position.expand(len(self.seeds), 1), self.model.config.grid
        codes = sampling.draw(logits, self.sampler, self.seeds, where, stream="target", grid=grid)
        self.tokens.index_copy_(1, self.position, codes)

    def _captured(self, span: int) -> Callable[[], None]:
        if self.seeds.device.type != "cuda":
            return partial(self._step, span)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.position.zero_()
            for _ in range(WARMUP_STEPS):
                self._step(span)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(span)
        return graph.replay
