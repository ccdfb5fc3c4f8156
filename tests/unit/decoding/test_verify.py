"""Acceptance, expansion and islands against brute force; identities of the counters."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mulosd.decoding import verify
from mulosd.methods import AR, MuLoSD
from mulosd.sampling import filters as sampling
from mulosd.sampling.filters import Sampler
from mulosd.types import Bools
from tests.unit.decoding import toys

SETTINGS = settings(max_examples=60)
SEED = st.integers(0, 10**6)


def random_codebook(seed: int, codes: int = 24) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(codes, 4, generator=torch.Generator().manual_seed(seed)), dim=-1)


def random_probs(seed: int, shape: tuple[int, ...]) -> Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(-1)


@st.composite
def rejections(draw: st.DrawFn) -> tuple[Bools, Bools]:
    """A rejected map and a block of whole rows that holds it."""
    height, width = draw(st.integers(2, 8)), draw(st.integers(2, 8))
    top = draw(st.integers(0, height - 1))
    bottom = draw(st.integers(top + 1, height))
    rng = np.random.default_rng(draw(SEED))
    allowed = np.zeros((height, width), bool)
    allowed[top:bottom] = True
    return (rng.random((height, width)) < draw(st.sampled_from([0.05, 0.2, 0.6]))) & allowed, allowed


@SETTINGS
@given(rejections(), st.integers(0, 3))
def test_expansion(case: tuple[Bools, Bools], radius: int) -> None:
    rejected, allowed = case
    cells = [(int(r), int(c)) for r, c in zip(*np.nonzero(rejected), strict=True)]
    first = min((r * rejected.shape[1] + c for r, c in cells), default=0)
    expected = np.zeros_like(rejected)
    for (row, col), inside in np.ndenumerate(allowed):
        near = any(max(abs(row - r), abs(col - c)) <= radius for r, c in cells)
        expected[row, col] = near and inside and row * rejected.shape[1] + col >= first
    found = verify.expand(rejected, radius, first, allowed)
    assert np.array_equal(found, expected)
    assert (found >= rejected).all()
    if radius == 0:
        assert np.array_equal(found, rejected)


def flood(cells: Bools) -> set[frozenset[tuple[int, int]]]:
    """8-connected components by walking."""
    todo = {(int(r), int(c)) for r, c in zip(*np.nonzero(cells), strict=True)}
    components = set()
    while todo:
        front = [todo.pop()]
        component = set(front)
        while front:
            r, c = front.pop()
            near = {(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & todo
            todo -= near
            component |= near
            front += near
        components.add(frozenset(component))
    return components


@SETTINGS
@given(rejections())
def test_islands(case: tuple[Bools, Bools]) -> None:
    labels = verify.islands(case[0])
    assert np.array_equal(labels > 0, case[0])
    found = {
        frozenset((int(r), int(c)) for r, c in zip(*np.nonzero(labels == k), strict=True))
        for k in range(1, labels.max() + 1)
    }
    assert found == flood(case[0])


def test_diagonal_neighbours_are_one_island() -> None:
    assert verify.islands(np.eye(3, dtype=bool)).max() == 1
    assert verify.islands(np.array([[True, False, True]])).max() == 2


@SETTINGS
@given(SEED, st.integers(1, 24))
def test_nearest_codes(seed: int, pool_k: int) -> None:
    codebook = random_codebook(seed)
    table = verify.nearest_codes(codebook, pool_k)
    assert table.shape == (24, pool_k)
    assert table[:, 0].tolist() == list(range(24))
    for code in range(24):
        others = [i for i in range(24) if i != code]
        by_distance = sorted(others, key=lambda i: float((codebook[i] - codebook[code]).norm()))
        assert table[code, 1:].tolist() == by_distance[: pool_k - 1]


def test_duplicated_codes_keep_themselves_first_and_pools_nested() -> None:
    codebook = random_codebook(1).repeat(3, 1)
    full = verify.nearest_codes(codebook, len(codebook))
    assert full[:, 0].tolist() == list(range(len(codebook)))
    for pool_k in (1, 2, 3, 7):
        assert torch.equal(verify.nearest_codes(codebook, pool_k), full[:, :pool_k])


def test_a_large_codebook_is_taken_in_parts() -> None:
    codebook = random_codebook(2, codes=1500)
    table = verify.nearest_codes(codebook, 3)
    assert table.shape == (1500, 3)
    assert table[:, 0].tolist() == list(range(1500))


@SETTINGS
@given(SEED, st.floats(-0.5, 1.5))
def test_acceptance_grows_with_the_pool_and_falls_with_tau(seed: int, tau: float) -> None:
    probs, codebook = random_probs(seed, (2, 5, 24)), random_codebook(seed)
    drafts = torch.randint(24, (2, 5), generator=torch.Generator().manual_seed(seed))
    masses = [verify.pooled_mass(probs, drafts, verify.nearest_codes(codebook, k)) for k in range(1, 25)]
    assert torch.allclose(masses[0], probs.gather(-1, drafts[..., None])[..., 0])
    assert torch.allclose(masses[-1], torch.ones(2, 5, dtype=torch.float64))
    accepted = [mass >= tau for mass in masses]
    for smaller, larger in itertools.pairwise(accepted):
        assert (larger >= smaller).all()
    for mass in masses:
        assert ((mass >= tau + 0.1) <= (mass >= tau)).all()
        assert (mass <= 1).all()


def test_a_filtered_pool_accepts_nothing() -> None:
    """Pooling acts on what top-k leaves: a draft whose neighbours are all filtered has mass 0, whatever tau > 0."""
    codebook = random_codebook(3)
    neighbours = verify.nearest_codes(codebook, 4)
    draft = torch.tensor([[5]])
    logits = torch.zeros(1, 1, 24, dtype=torch.float64)
    outside = [code for code in range(24) if code not in neighbours[5].tolist()][:8]
    logits[..., outside] = 1.0
    kept = sampling.probabilities(logits, Sampler(top_k=8))
    assert verify.pooled_mass(kept, draft, neighbours).item() == 0
    assert verify.pooled_mass(sampling.probabilities(logits, Sampler()), draft, neighbours).item() > 0
    logits[..., neighbours[5, 3]] = 2.0  # one neighbour survives: its mass counts
    assert verify.pooled_mass(sampling.probabilities(logits, Sampler(top_k=8)), draft, neighbours).item() > 0


def test_top_k_of_the_target_binds_drafts_and_resampled_tokens() -> None:
    """With top-k 1 and pool 1 an accepted draft is the target's argmax: the image is greedy AR's."""
    sampler = Sampler(guidance=3.0, top_k=1)
    greedy = toys.run(AR(), sampler=sampler)
    method = MuLoSD(tau=1e-6, pool_k=1, radius=0, resample="serial")
    result = toys.run(method, sampler=sampler)
    for b in range(3):
        first = int(toys.resampled_map(result, b).ravel().argmax())
        assert np.array_equal(result.tokens[b].ravel()[: first + 1], greedy.tokens[b].ravel()[: first + 1])


@settings(max_examples=25)
@given(
    tau=st.sampled_from([-1.0, 0.0, 0.005, 0.02, 0.05, 0.2, 0.9, 1.1]),
    pool_k=st.sampled_from([1, 2, 5, toys.CODES]),
    radius=st.integers(0, 2),
    rows=st.sampled_from([1, 2, 3, "all"]),
    resample=st.sampled_from(["islands", "serial"]),
    window=st.integers(1, 3),
)
def test_identities_of_the_counters(**knobs: object) -> None:
    knobs["rows_per_cycle"], window = knobs.pop("rows"), knobs.pop("window")
    knobs |= {"island_window": window} if knobs["resample"] == "islands" else {}
    method = MuLoSD(draft_window=2, upsampler="repeat", **knobs)  # type: ignore[arg-type]
    result = toys.run(method, draft_grid=2, upsampler="repeat")
    for b, stats in enumerate(result.stats):
        assert stats.drafted == 16
        assert stats.accepted == stats.drafted - stats.rejected
        assert stats.resampled == stats.rejected + stats.expanded
        assert 0 <= stats.rejected <= stats.resampled <= stats.drafted
        assert int(toys.resampled_map(result, b).sum()) == stats.resampled
        assert stats.forwards == sum(v for k, v in vars(stats).items() if k.startswith("forwards_"))
        assert (
            stats.cycles
            == stats.forwards_verify
            == (1 if method.rows_per_cycle == "all" else -(-2 // method.rows_per_cycle))
        )
        if method.tau <= 0:
            assert stats.rejected == 0
        if method.tau > 1:
            assert stats.rejected == 16


def test_the_whole_map_is_refused_or_kept_by_tau_alone() -> None:
    few = toys.run(MuLoSD(tau=0.005, pool_k=2, radius=0))
    many = toys.run(MuLoSD(tau=0.1, pool_k=2, radius=0))
    for b in range(3):  # same draft, same verification forward: rejections are nested
        assert (toys.resampled_map(many, b) >= toys.resampled_map(few, b)).all()
        assert many.stats[b].rejected > few.stats[b].rejected


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_nothing_before_the_first_rejection_changes(radius: int) -> None:
    method = MuLoSD(tau=0.005, pool_k=2, radius=radius)
    result, draft = toys.run(method), toys.run(MuLoSD(tau=0.0))
    for b in range(3):
        rejected = result.status[b].ravel() == 1
        first = int(rejected.argmax())
        assert np.array_equal(result.tokens[b].ravel()[:first], draft.tokens[b].ravel()[:first])
        kept = ~toys.resampled_map(result, b)
        assert np.array_equal(result.tokens[b][kept], draft.tokens[b][kept])
