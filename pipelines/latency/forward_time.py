"""t(m): what one guided forward of m tokens costs at batch 1 (bench/README.md), the price list of every schedule.

A call looks like a verification: m consecutive cells fed at once, each attending to all before it and to itself, the
conditional and the null row in one batch. The cache is half full: the fed cells end at N/2 + m, for m > N/2 at N.

In it: the model's call on both rows with its writes to the cache, attention under a mask of that size, and the
guidance of the logits. Not in it, though decoders pay it at every step: gathering queries into arrays, building the
mask from their state and moving both to the device (`Engine.feed`), drawing or pooling from the logits, and the copy
back. So t(m) is a lower bound of a step; `latency_s` of whole images, from the same bench run, has all of it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 9
WARMUP_ROUNDS = 2
GUIDANCE = 3.0  # any scale above 1 costs the same


def forward_times(
    target: Any, *, synchronize: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> dict[str, dict[str, float]]:
    """Median milliseconds by model and m: {"target": {"1": ..., "2": ...}, "drafter": {"1": ...}}.

    target: a loaded target with `model` and `drafter` (None: left out). All sizes take turns, `ROUNDS` times after
    `WARMUP_ROUNDS`, so that a slow spell of the machine meets every size.
    """
    done = {"target": _times(target.model, sizes(target.model.config.num_tokens), synchronize, clock)}
    if target.drafter is not None:
        done["drafter"] = _times(target.drafter, [1], synchronize, clock)
    return done


def sizes(num_tokens: int) -> list[int]:
    """Powers of two below N, then N itself."""
    return [*(1 << i for i in range((num_tokens - 1).bit_length())), num_tokens]


def describe() -> dict[str, Any]:
    """How the times are made, for the record of a run."""
    return {"rounds": ROUNDS, "warmup_rounds": WARMUP_ROUNDS, "rows": 2, "cache": "half", "mask": "causal"}


def _times(
    model: Any, queries: list[int], synchronize: Callable[[], None], clock: Callable[[], float]
) -> dict[str, float]:
    import torch

    calls = {m: _call(model, m) for m in queries}
    spent: dict[int, list[float]] = {m: [] for m in queries}
    with torch.inference_mode():
        for number in range(WARMUP_ROUNDS + ROUNDS):
            for m, call in calls.items():
                synchronize()
                began = clock()
                call()
                synchronize()
                if number >= WARMUP_ROUNDS:
                    spent[m].append(clock() - began)
    return {str(m): 1000 * statistics.median(times) for m, times in spent.items()}


def _call(model: Any, m: int) -> Callable[[], Any]:
    """One guided forward of m cells on a cache of its own, whose visible slots hold noise."""
    import torch

    from mulosd.sampling.filters import guide

    N = model.config.num_tokens
    start = min(N // 2, N - m)
    cache = model.new_cache(2)
    cache.kv.normal_()
    device = cache.kv.device
    positions = torch.arange(start, start + m, device=device).expand(2, m)
    tokens = torch.zeros_like(positions)
    mask = torch.arange(start + m, device=device) <= positions[..., None]

    def call() -> Any:
        cond, uncond = model(tokens, positions, positions, cache, mask).chunk(2)
        return guide(cond, uncond, GUIDANCE)

    return call
