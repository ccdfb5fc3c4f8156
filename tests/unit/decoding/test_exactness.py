"""The two exact corners of MuLo-SD, ZipAR's, and independence of batch, numbering and frames."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from mulosd.decoding import mulosd, wavefront
from mulosd.decoding.engine import Engine, Queries
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.image_gpt import ImageGPT
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED, STATUS_SAMPLED
from tests.unit.decoding import toys

DTYPES = [torch.float64, torch.float32]
LOSSY: dict[str, SamplerKnobs] = {
    "zipar": ZipAR(window=2),
    "draft-only": DraftOnly(draft_window=2),
    "islands": MuLoSD(tau=0.02, pool_k=4),
    "islands-local": MuLoSD(tau=0.02, pool_k=2, radius=0, island_window=2),
    "islands-rows": MuLoSD(tau=0.05, pool_k=4, rows_per_cycle=1, island_window=1),
    "serial": MuLoSD(tau=0.02, pool_k=4, resample="serial"),
    "serial-rows": MuLoSD(tau=0.02, pool_k=2, radius=0, rows_per_cycle=3, draft_window=2, resample="serial"),
}
ISLANDS = ["islands", "islands-local", "islands-rows"]
IN_FLOAT32 = ["zipar", "islands-local", "serial-rows"]
BATCHES = [(name, torch.float64) for name in LOSSY] + [(name, torch.float32) for name in IN_FLOAT32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, "all"])
def test_rejecting_all_serially_is_ar(rows: Any, dtype: torch.dtype) -> None:
    method = MuLoSD(tau=1.5, rows_per_cycle=rows, resample="serial")
    result = toys.run(method, dtype=dtype)
    assert toys.same_tokens(result, toys.run(AR(), dtype=dtype))
    for stats in result.stats:
        cycles = {1: 4, 2: 2, 3: 2, "all": 1}[rows]
        assert (stats.cycles, stats.forwards_verify) == (cycles, cycles)
        assert (stats.rejected, stats.accepted, stats.resampled) == (64, 0, 64)
        assert stats.forwards_draft > 0
    assert (result.status == STATUS_REJECTED).all()


@pytest.mark.parametrize("tau", [1.0 + 1e-9, 1e30])
def test_any_tau_above_one_rejects_all_even_where_the_pool_holds_every_code(tau: float) -> None:
    method = MuLoSD(tau=tau, pool_k=toys.CODES, rows_per_cycle=2, resample="serial")
    assert all(stats.rejected == 64 for stats in toys.run(method, dtype=torch.float32).stats)


def test_exactness_needs_the_fed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a resampling forward that feeds another token than the drawn one is seen."""
    chain = Engine.chain

    def wrong(target: Engine, b: int, positions: Iterable[int]) -> Queries:
        queries = chain(target, b, positions)
        single = len(queries.tokens) == 1
        tokens = [(token + 1) % toys.CODES for token in queries.tokens] if single else queries.tokens
        return Queries(tokens, queries.positions, queries.slots, queries.cell_rows)

    monkeypatch.setattr(Engine, "chain", wrong)
    assert not toys.same_tokens(toys.run(MuLoSD(tau=1.5, resample="serial")), toys.run(AR()))


@pytest.mark.parametrize("rows", [1, 2, "all"])
@pytest.mark.parametrize("resample", ["serial", "islands"])
@pytest.mark.parametrize("upsampler", ["repeat", "bicubic"])
def test_accepting_all_returns_the_draft(rows: Any, resample: Any, upsampler: str) -> None:
    knobs: dict[str, Any] = {"draft_window": 4, "upsampler": upsampler}
    for tau in (0.0, -3.0):
        method = MuLoSD(tau=tau, rows_per_cycle=rows, resample=resample, **knobs)
        result = toys.run(method, upsampler=upsampler)
        if rows == "all" or upsampler == "repeat":  # a canvas that is not yet full decodes differently
            assert toys.same_tokens(result, toys.run(DraftOnly(**knobs), upsampler=upsampler))
        for stats in result.stats:
            assert (stats.rejected, stats.resampled, stats.accepted, stats.forwards_resample) == (0, 0, 64, 0)
            assert stats.forwards_refresh == 0
        assert (result.status == STATUS_ACCEPTED).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [8, 9, 100])
def test_zipar_with_a_window_as_wide_as_the_grid_is_ar(window: int, dtype: torch.dtype) -> None:
    result = toys.run(ZipAR(window=window), dtype=dtype)
    assert toys.same_tokens(result, toys.run(AR(), dtype=dtype))
    assert [stats.forwards for stats in result.stats] == [64] * 3
    assert not toys.same_tokens(toys.run(ZipAR(window=7), dtype=dtype), result)  # the comparison can fail


@pytest.mark.parametrize(("name", "dtype"), BATCHES)
def test_an_image_does_not_depend_on_its_batch(name: str, dtype: torch.dtype) -> None:
    method = LOSSY[name]
    together = toys.run(method, dtype=dtype)
    reordered = toys.run(method, (2, 0, 1), dtype=dtype)
    assert len({tokens.tobytes() for tokens in together.tokens}) == 3
    for image in range(3):
        alone = toys.run(method, (image,), dtype=dtype)
        other = (image + 1) % 3
        for tokens, status, stats in (
            (alone.tokens[0], alone.status[0], toys.counters(alone)),
            (reordered.tokens[other], reordered.status[other], toys.counters(reordered, other)),
        ):
            assert np.array_equal(together.tokens[image], tokens)
            assert np.array_equal(together.status[image], status)
            assert toys.counters(together, image) == stats


def test_lossy_settings_of_this_file_reject_some_in_several_islands() -> None:
    for name, method in LOSSY.items():
        if isinstance(method, MuLoSD):
            result = toys.run(method)
            assert all(0 < stats.rejected < 64 for stats in result.stats), name
            if name in ISLANDS:
                assert max(mulosd.verify.islands(toys.resampled_map(result, b)).max() for b in range(3)) > 1, name


def test_the_numbering_of_islands_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [LOSSY[name] for name in ISLANDS]
    plain = [toys.run(method) for method in methods]
    find = mulosd.verify.islands

    def reversed_numbers(cells: np.ndarray) -> np.ndarray:
        labels = find(cells)
        return np.where(labels > 0, labels.max() + 1 - labels, 0)

    monkeypatch.setattr(mulosd.verify, "islands", reversed_numbers)
    for method, before in zip(methods, plain, strict=True):
        after = toys.run(method)
        assert toys.same_tokens(before, after)
        assert all(toys.counters(before, b) == toys.counters(after, b) for b in range(3))


def test_a_split_of_one_island_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: with each row an island of its own the tokens change."""
    method = MuLoSD(tau=0.05, pool_k=2)
    plain = toys.run(method)
    rows = np.arange(1, 9)[:, None]
    monkeypatch.setattr(mulosd.verify, "islands", lambda cells: np.where(cells, rows, 0))
    assert not toys.same_tokens(plain, toys.run(method))


@pytest.mark.parametrize("name", LOSSY)
def test_status_maps_count_what_the_counters_say(name: str) -> None:
    method = LOSSY[name]
    result = toys.run(method)
    for stats, status in zip(result.stats, result.status, strict=True):
        count = {value: int((status == value).sum()) for value in range(4)}
        if isinstance(method, MuLoSD):
            assert count[STATUS_REJECTED] == stats.rejected
            assert count[STATUS_EXPANDED] == stats.expanded
            assert count[STATUS_ACCEPTED] == stats.drafted - stats.resampled
        elif isinstance(method, DraftOnly):
            assert count[STATUS_ACCEPTED] == stats.drafted == stats.accepted == 64
        else:
            assert count[STATUS_SAMPLED] == 64
            assert stats.drafted == stats.cycles == 0


@pytest.mark.parametrize("method", [AR(), LOSSY["zipar"]], ids=["ar", "zipar"])
def test_frames_of_methods_without_a_draft(method: SamplerKnobs) -> None:
    frames: list[np.ndarray] = []
    result = toys.run(method, record=frames.append)
    assert toys.same_tokens(result, toys.run(method))  # recording changes nothing
    assert len(frames) == result.stats[0].forwards
    assert np.array_equal(frames[-1], result.tokens)
    for before, after in itertools.pairwise(frames):
        assert (after >= 0).sum() > (before >= 0).sum()
        assert (before[before >= 0] == after[before >= 0]).all()  # a decided token stays


@pytest.mark.parametrize("name", ["draft-only", "islands-rows", "islands-local", "serial-rows"])
def test_frames_of_methods_with_a_draft(name: str) -> None:
    frames: list[np.ndarray] = []
    method = LOSSY[name]
    result = toys.run(method, record=frames.append)
    assert all(frame.shape == (3, 8, 8) for frame in frames)
    assert np.array_equal(frames[-1], result.tokens)
    rows = {"islands-rows": 2, "serial-rows": 6}.get(name, 8)
    assert (frames[0][:, :rows] >= 0).all(), "the first frame shows the first drafted block"
    assert (frames[0][:, rows:] == -1).all()
    if isinstance(method, MuLoSD):
        ever_hidden = np.any([frame == -1 for frame in frames[1:]], axis=0)
        assert ever_hidden[result.status != STATUS_ACCEPTED].all(), "a resampled cell is blank until it is drawn"


@pytest.mark.parametrize("name", ["serial", "serial-rows", "islands-rows"])
def test_keys_and_values_are_those_of_the_final_tokens(name: str) -> None:
    """Serial: option C, row cycles: option B of docs/mulosd.md "K/V after resampling"."""
    models: list[toys.Poisoned] = []

    def wrap(model: ImageGPT) -> toys.Poisoned:
        models.append(toys.Poisoned(model, 0.0))
        return models[-1]

    result = toys.run(LOSSY[name], wrap=wrap)
    kv, T = models[0].caches[0].kv, models[0].config.prefix_len
    fresh = toys.teacher_forced_cache(result.tokens)
    for b in range(3):
        # what follows the last cell to change is never used, so it may be stale
        stop = int(np.nonzero(toys.resampled_map(result, b).ravel())[0][-1]) if "serial" in name else 6 * 8
        for row in (b, b + 3):
            assert torch.allclose(kv[:, :, row, :, : T + stop], fresh[:, :, row, :, : T + stop], atol=1e-9)
    stale = toys.run(LOSSY["islands"], wrap=wrap)
    assert not torch.allclose(
        models[1].caches[0].kv[..., T : T + 63, :], toys.teacher_forced_cache(stale.tokens)[..., T : T + 63, :]
    )


def test_a_deadlock_is_loud() -> None:
    class Stuck(wavefront.Worklist):
        def ready(self) -> list[wavefront.Cell]:
            return []

    engine = toys.make_job().target_engine()
    with pytest.raises(AssertionError, match="wait for each other"):
        wavefront.fill(engine, [Stuck(np.ones((8, 8), np.int64), 1)] * 3, "resample")
