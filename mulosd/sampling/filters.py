"""Logits -> filtered probabilities -> one draw, in the order of LlamaGen's autoregressive/models/generate.py.

temperature, then top-k (ties at the threshold survive), then top-p on what top-k left, then softmax.
The draw is Gumbel-max with keyed noise. The same filtered distribution is what MuLo-SD verifies against.
Greedy settings (`greedy.is_greedy`) leave one code, the lowest id among the maxima, and take no noise.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.sampling import noise
from mulosd.sampling.greedy import is_greedy


@dataclass(frozen=True)
class Sampler:
    """Resolved sampling settings of one model; guidance acts before them.

    cfg_interval: the last raster position whose output is guided, -1: all are. logits_dtype None: as the model has it.
    """

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    cfg_interval: int = -1
    logits_dtype: str | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether a draw leaves no choice."""
        return is_greedy(self.temperature, self.top_k)


def guide(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """u + s (c - u)."""
    return uncond + scale * (cond - uncond)


def guide_up_to(logits: Tensor, positions: Tensor, sampler: Sampler) -> Tensor:
    """Logits [2B, Q, V] of fed positions [B, Q], null rows last -> guided [B, Q, V], but c after `cfg_interval`.

    The output at a position decides the next cell, so that the cells up to cfg_interval + 1 are guided: LlamaGen counts
    from its second token on.
    """
    cond, null = logits.chunk(2)
    guided = guide(cond, null, sampler.guidance)
    if sampler.cfg_interval < 0:
        return guided
    return torch.where((positions <= sampler.cfg_interval)[..., None], guided, cond)


def in_dtype(logits: Tensor, name: str | None, model: torch.dtype) -> Tensor:
    """Logits as `logits_dtype` asks: "float32" widens 16 bits, "model" is the dtype of the weights, None leaves them.

    Either way is exact, as a model computes them in the dtype of its weights.
    """
    if name == "model":
        return logits.to(model)
    return logits.float() if name == "float32" and logits.itemsize < 4 else logits


def filter_logits(logits: Tensor, sampler: Sampler) -> Tensor:
    """[..., V] -> the same with dropped codes at -inf; 16-bit logits are widened first (softmax in float32)."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if sampler.is_greedy:
        best = logits.argmax(-1, keepdim=True)  # the first of several maxima
        return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
    logits = logits / sampler.temperature
    if 0 < sampler.top_k < logits.shape[-1]:
        threshold = logits.topk(sampler.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    if sampler.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        mass_before = F.pad(ordered.softmax(-1).cumsum(-1)[..., :-1], (1, 0))
        dropped = mass_before > sampler.top_p
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)
    return logits


def without_filters(sampler: Sampler) -> Sampler:
    """The same sampler without top-k and top-p."""
    return replace(sampler, top_k=0, top_p=1.0)


def probabilities(logits: Tensor, sampler: Sampler) -> Tensor:
    """[..., V] logits -> probabilities after all filters."""
    return filter_logits(logits, sampler).softmax(-1)


def draw(
    logits: Tensor, sampler: Sampler, seeds: Tensor, positions: Tensor, *, stream: str, grid: int, iteration: int = 0
) -> Tensor:
    """One code per query: logits [B, Q, V], seeds [B], positions [B, Q] -> int64 [B, Q]."""
    if sampler.is_greedy:
        return logits.argmax(-1)  # the first of several maxima
    g = noise.gumbel(seeds, positions, logits.shape[-1], stream=stream, grid=grid, iteration=iteration)
    return (filter_logits(logits, sampler).double() + g).argmax(-1)
