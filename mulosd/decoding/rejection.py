"""From pooled masses to the cells that a cycle resamples: thresholds and policies (docs/mulosd.md "The cycle").

Pure functions on arrays; no model, no cache. Every policy grows with the set of failed cells, and that set grows with
tau and shrinks with pool_k.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mulosd.decoding import verify
from mulosd.methods import MuLoSD
from mulosd.types import Bools, Floats


class Verdict(NamedTuple):
    """Maps [H, W] of one image: R_T, and R_X, which the target samples again; and the tau that made them."""

    rejected: Bools
    resampled: Bools
    tau: float


def judge(method: MuLoSD, mass: Floats, start: int, grid: int) -> Verdict:
    """The verdict on drafted cells start .. start + M - 1, from their pooled masses [M].

    Under `raster-redraft` R_X is only the first failed cell and R_T every draft from it on: those are discarded.
    """
    block = np.zeros(grid * grid, bool)
    block[start : start + len(mass)] = True

    def failed_below(tau: float) -> Bools:
        failed = np.zeros(grid * grid, bool)
        failed[block] = ~(mass >= tau)
        return failed.reshape(grid, grid)

    allowed = block.reshape(grid, grid)
    tau = method.tau
    if method.resampled_fraction is not None:
        limit = method.resampled_fraction * len(mass)
        tau = largest_tau(mass, limit, lambda tau: int(resampled_cells(method, failed_below(tau), allowed).sum()))
    failed = failed_below(tau)
    resampled = resampled_cells(method, failed, allowed)
    if method.rejection == "raster-redraft" and failed.any():
        failed = _from_first(failed, allowed)
    return Verdict(failed, resampled, tau)


def resampled_cells(method: MuLoSD, failed: Bools, allowed: Bools) -> Bools:
    """R_X of the failed cells [H, W] by the rejection policy; `allowed` are the cells of the block."""
    if not failed.any():
        return failed
    first = int(failed.ravel().argmax())
    if method.rejection == "raster-resample":
        return _from_first(failed, allowed)
    if method.rejection == "raster-redraft":
        return np.asarray(np.arange(failed.size).reshape(failed.shape) == first)
    return verify.expand(failed, 0 if method.rejection == "local" else method.radius, first, allowed)


def largest_tau(mass: Floats, limit: float, count_at: Callable[[float], int]) -> float:
    """The tau of the largest R_X that holds at most `limit` cells; `count_at(tau)` counts them.

    Only the masses themselves separate sets of rejected cells: the i-th distinct one rejects those below it. Returned
    is the middle between the two masses that tau separates, where the rounding of another batch moves no cell.
    """
    taus: list[float] = [*np.unique(mass).tolist(), np.inf]
    last = bisect_right(taus, limit, lo=1, key=count_at) - 1
    if last == 0:
        return taus[0] / 2
    return max(math.nextafter(taus[last - 1], math.inf), (taus[last - 1] + taus[last]) / 2)


def _from_first(failed: Bools, allowed: Bools) -> Bools:
    """All cells of the block from the first failed one on."""
    later: Bools = np.arange(failed.size).reshape(failed.shape) >= failed.ravel().argmax()
    return later & allowed
