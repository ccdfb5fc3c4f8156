"""Rejection policies and the adaptive tau against brute force; what grows with what."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulosd.decoding import rejection, verify
from mulosd.methods import MuLoSD
from mulosd.types import Bools
from tests.unit.decoding.test_verify import random_codebook, random_probs

SETTINGS = settings(max_examples=30)
POLICIES: list[dict[str, Any]] = [
    {"rejection": "local"},
    {"radius": 1},
    {"radius": 2},
    {"rejection": "raster-resample"},
    {"rejection": "raster-redraft"},
]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Masses of drafted cells, with ties; their first cell, which may lie inside a row; the side of the grid."""
    side = draw(st.integers(2, 7))
    start = draw(st.integers(0, side * side - 1))
    stop = side * draw(st.integers(start // side + 1, side))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return np.round(rng.random(stop - start), draw(st.sampled_from([1, 3]))), start, side


def by_hand(method: MuLoSD, mass: np.ndarray, start: int, side: int) -> tuple[set[int], set[int]]:
    """R_T and R_X as sets of raster indices, from the text of `MuLoSD` and docs/mulosd.md."""
    block = range(start, start + len(mass))
    failed = {p for p in block if mass[p - start] < method.tau}
    if not failed:
        return set(), set()
    first = min(failed)
    later = {p for p in block if p >= first}
    if method.rejection == "raster-resample":
        return failed, later
    if method.rejection == "raster-redraft":
        return later, {first}
    radius = 0 if method.rejection == "local" else method.radius

    def near(p: int, t: int) -> bool:
        return abs(p // side - t // side) <= radius and abs(p % side - t % side) <= radius

    return failed, {p for p in later if any(near(p, t) for t in failed)}


def indices(cells: Bools) -> set[int]:
    return set(np.nonzero(cells.ravel())[0].tolist())


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@SETTINGS
@given(blocks(), st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.1]))
def test_policies(policy: dict[str, Any], case: tuple[np.ndarray, int, int], tau: float) -> None:
    method = MuLoSD(tau=tau, **policy)
    mass, start, side = case
    verdict = rejection.judge(method, mass, start, side)
    assert (indices(verdict.rejected), indices(verdict.resampled)) == by_hand(method, mass, start, side)


def test_an_undefined_mass_is_rejected() -> None:
    assert indices(rejection.judge(MuLoSD(tau=0.1, radius=0), np.array([0.5, np.nan]), 2, 2).rejected) == {3}


def test_policies_differ_where_they_should() -> None:
    mass = np.ones(25)
    mass[5] = 0
    found = [indices(rejection.judge(MuLoSD(**policy), mass, 0, 5).resampled) for policy in POLICIES]
    assert found == [{5}, {5, 6, 10, 11}, {5, 6, 7, 10, 11, 12, 15, 16, 17}, set(range(5, 25)), {5}]


@pytest.mark.parametrize("policy", [p for p in POLICIES if p.get("rejection") != "raster-redraft"], ids=str)
@SETTINGS
@given(blocks(), st.floats(0.01, 0.99))
def test_the_adaptive_tau_resamples_as_much_as_is_allowed(
    policy: dict[str, Any], case: tuple[np.ndarray, int, int], fraction: float
) -> None:
    """Against all values that tau could take: no larger set of resampled cells stays within the fraction."""
    mass, start, side = case
    found = rejection.judge(MuLoSD(resampled_fraction=fraction, **policy), mass, start, side)
    sizes = []
    for tau in [*mass.tolist(), 2.0]:
        _, resampled = by_hand(MuLoSD(tau=tau, **policy), mass, start, side)
        sizes.append(len(resampled))
    assert int(found.resampled.sum()) == max(size for size in [0, *sizes] if size <= fraction * len(mass))
    assert (indices(found.rejected), indices(found.resampled)) == by_hand(MuLoSD(tau=found.tau, **policy), *case)


def test_the_adaptive_tau_lies_between_the_masses_that_it_separates() -> None:
    adjacent = math.nextafter(0.5, 1)
    for mass, tau in (
        ([0.1, 0.2, 0.4, 0.8], 0.3),
        ([0.2, 0.2, 0.2, 0.2], 0.1),
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([0.5, 0.5, adjacent, 0.8], adjacent),
    ):
        found = rejection.judge(MuLoSD(resampled_fraction=0.5, rejection="local"), np.array(mass), 0, 2)
        assert found.tau == pytest.approx(tau, rel=1e-15)
        assert indices(found.rejected) == {i for i, one in enumerate(mass) if one < tau}


@pytest.mark.parametrize("policy", [p for p in POLICIES if p.get("rejection") != "raster-redraft"], ids=str)
@SETTINGS
@given(st.integers(0, 10**6))
def test_resampled_cells_grow_with_tau_and_shrink_with_the_pool(policy: dict[str, Any], seed: int) -> None:
    """Nested sets, along tau for every pool and along the pool for every tau."""
    probs, codebook = random_probs(seed, (1, 16, 24)), random_codebook(seed)
    table = verify.nearest_codes(codebook, 24)
    drafts = table[:16, 3][None]
    taus, pools = (0.01, 0.05, 0.2, 0.6, 1.1), (1, 2, 5, 24)
    maps = {}
    for pool_k, tau in itertools.product(pools, taus):
        mass = verify.pooled_mass(probs, drafts, table[:, :pool_k])[0].numpy()
        maps[pool_k, tau] = rejection.judge(MuLoSD(tau=tau, pool_k=pool_k, **policy), mass, 0, 4).resampled
    for pool_k in pools:
        assert all((maps[pool_k, a] <= maps[pool_k, b]).all() for a, b in itertools.pairwise(taus))
    for tau in taus:
        assert all((maps[a, tau] >= maps[b, tau]).all() for a, b in itertools.pairwise(pools))
