"""Which cells may run: the rule of `fill` restated cell by cell, against `Worklist` and against forward counts."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mulosd.decoding import verify
from mulosd.decoding.wavefront import Cell, Worklist
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.image_gpt import ImageGPT
from mulosd.types import STATUS_ACCEPTED, Bools, Ints
from tests.unit.decoding import toys

SETTINGS = settings(max_examples=60)
SIDE = st.integers(2, 7)


def may_run(pending: Bools, labels: Ints, window: int, row: int, col: int, *, first_row_serial: bool = False) -> bool:
    """The rule, one cell at a time, from the text and not from the code under test."""
    width = labels.shape[1]
    island = labels[row, col]
    for r in range(row + 1):
        for c in range(width):
            if not pending[r, c] or labels[r, c] != island:
                continue
            if r == row and c < col:
                return False
            if r < row and (c < col + window or (first_row_serial and r == 0)):
                return False
    row_wraps = col == 0 and row > 0 and pending[row - 1, width - 1]
    return not (row_wraps and labels[row - 1, width - 1] != island)


def simulate(labels: Ints, window: int, *, first_row_serial: bool = False) -> list[set[Cell]]:
    """The fronts: cells that run together, until nothing is pending."""
    pending, fronts = labels > 0, []
    while pending.any():
        front = {
            Cell(int(r), int(c))
            for r, c in zip(*np.nonzero(pending), strict=True)
            if may_run(pending, labels, window, int(r), int(c), first_row_serial=first_row_serial)
        }
        assert front, "deadlock"
        for cell in front:
            pending[cell] = False
        fronts.append(front)
    return fronts


def fronts_of(work: Worklist) -> list[set[Cell]]:
    fronts = []
    while not work.is_done:
        cells = work.ready()
        assert len(set(cells)) == len(cells) > 0
        work.finish(cells)
        fronts.append(set(cells))
    return fronts


def num_forwards(fronts: list[set[Cell]]) -> int:
    """Cell 0 is drawn from the prefix's own logits: a front of it alone needs no forward."""
    return sum(front != {Cell(0, 0)} for front in fronts)


@st.composite
def maps(draw: st.DrawFn) -> Ints:
    side = draw(SIDE)
    density = draw(st.sampled_from([0.2, 0.5, 0.8, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return verify.islands(rng.random((side, side)) < density)


@SETTINGS
@given(maps(), st.integers(1, 8))
def test_islands_run_by_the_rule(labels: Ints, window: int) -> None:
    assert fronts_of(Worklist(labels, window)) == simulate(labels, window)


@SETTINGS
@given(SIDE, st.integers(1, 9))
def test_zipar_takes_its_closed_form(side: int, window: int) -> None:
    labels = np.ones((side, side), np.int64)
    fronts = fronts_of(Worklist(labels, window, first_row_serial=True))
    assert fronts == simulate(labels, window, first_row_serial=True)
    assert len(fronts) == (2 * side + (side - 2) * min(window, side) if window < side else side * side)
    assert all(front == {Cell(0, step)} for step, front in enumerate(fronts[:side])), "the first row is serial"


@SETTINGS
@given(maps(), st.integers(1, 8), st.randoms(use_true_random=False))
def test_renumbered_islands_run_alike(labels: Ints, window: int, random: Random) -> None:
    numbers = list(range(1, int(labels.max()) + 1))
    shuffled = numbers.copy()
    random.shuffle(shuffled)
    renumbered = np.array([0, *shuffled])[labels]
    assert fronts_of(Worklist(labels, window)) == fronts_of(Worklist(renumbered, window))


def test_one_island_waits_for_the_window_and_two_do_not() -> None:
    one, two = toys.labels_of(["11..", "11..", "...."]), toys.labels_of(["11..", "....", "11.."])
    assert [len(f) for f in fronts_of(Worklist(one, 4))] == [1, 1, 1, 1]
    assert [len(f) for f in fronts_of(Worklist(np.where(two > 0, [[1], [0], [2]], 0), 4))] == [2, 2]


def test_a_pending_row_end_of_the_same_island_is_not_awaited() -> None:
    assert fronts_of(Worklist(toys.labels_of(["..11", "1..."]), 1))[0] == {Cell(0, 2), Cell(1, 0)}


def test_a_pending_row_end_of_another_island_is_awaited() -> None:
    assert fronts_of(Worklist(toys.labels_of(["..11", "2..."]), 1)) == [{Cell(0, 2)}, {Cell(0, 3)}, {Cell(1, 0)}]


def test_a_rule_without_the_window_is_seen() -> None:
    """The comparison can fail: rows that run at will are not the simulated fronts."""
    labels = np.ones((4, 4), np.int64)
    assert fronts_of(Worklist(labels, 1)) != simulate(labels, 3)
    assert fronts_of(Worklist(labels, 1)) != simulate(labels, 1, first_row_serial=True)


# Counters of decoded images.


def test_forwards_of_ar() -> None:
    for stats in toys.run(AR()).stats:
        assert (stats.forwards_resample, stats.forwards, stats.tokens_fed) == (64, 64, 63)


@pytest.mark.parametrize("window", [1, 3, 7])
def test_forwards_of_zipar(window: int) -> None:
    assert [stats.forwards for stats in toys.run(ZipAR(window=window)).stats] == [2 * 8 + 6 * window] * 3


@pytest.mark.parametrize("window", [1, 2, 4, 5])
def test_forwards_of_a_draft(window: int) -> None:
    expected = 2 * 4 + 2 * window if window < 4 else 16
    for stats in toys.run(DraftOnly(draft_window=window)).stats:
        assert (stats.forwards_draft, stats.forwards) == (expected, expected)


@pytest.mark.parametrize(("pool_k", "radius", "window"), [(4, 1, 1), (2, 0, 2), (1, 0, 1), (1, 1, 3)])
def test_forwards_of_whole_image_islands(pool_k: int, radius: int, window: int) -> None:
    method = MuLoSD(tau=0.02, pool_k=pool_k, radius=radius, island_window=window, draft_window=2)
    result = toys.run(method)
    for b, stats in enumerate(result.stats):
        labels = verify.islands(toys.resampled_map(result, b))
        assert labels.any()
        assert stats.forwards_draft == 2 * 4 + 2 * 2
        assert (stats.forwards_verify, stats.forwards_refresh, stats.cycles) == (1, 0, 1)
        assert stats.forwards_resample == num_forwards(simulate(labels, window))


def test_the_whole_grid_in_one_island() -> None:
    """All rejected: the wavefront of the grid; the front of cell 0 alone takes no forward."""
    fronts = simulate(np.ones((8, 8), np.int64), 2)
    assert fronts[0] == {Cell(0, 0)}
    for stats in toys.run(MuLoSD(tau=2.0, island_window=2)).stats:
        assert stats.forwards_resample == len(fronts) - 1


@pytest.mark.parametrize("rows", [1, 2, 3, "all"])
def test_forwards_of_serial_cycles(rows: int) -> None:
    """N_q + R + sum over cycles of max(0, |R_X| - 1) (docs/mulosd.md "Forward passes")."""
    result = toys.run(MuLoSD(tau=0.01, pool_k=2, radius=0, rows_per_cycle=rows, resample="serial"))
    step = 4 if rows == "all" else rows
    bounds = [(2 * low, min(2 * (low + step), 8)) for low in range(0, 4, step)]
    for b, stats in enumerate(result.stats):
        cells = toys.resampled_map(result, b)
        sizes = [int(cells[top:bottom].sum()) for top, bottom in bounds]
        assert (stats.forwards_draft, stats.forwards_verify, stats.cycles) == (16, len(bounds), len(bounds))
        assert stats.forwards_resample == sum(max(0, size - 1) for size in sizes)
        assert stats.forwards_refresh == 0
    assert any(stats.forwards_resample for stats in result.stats)


def test_forwards_of_island_cycles() -> None:
    """Each cycle's islands on their own; one refresh where a block changed, except after the last."""
    result = toys.run(MuLoSD(tau=0.01, pool_k=4, radius=0, rows_per_cycle=1, island_window=1))
    for b, stats in enumerate(result.stats):
        cells = toys.resampled_map(result, b)
        blocks = [np.where(np.arange(8)[:, None] // 2 == i, cells, False) for i in range(4)]
        paths = [num_forwards(simulate(verify.islands(block), 1)) for block in blocks]
        assert stats.forwards_resample == sum(paths)
        assert stats.forwards_refresh == sum(bool(block.any()) for block in blocks[:3])
        assert (stats.forwards_verify, stats.cycles) == (4, 4)
    assert len({stats.forwards_refresh for stats in result.stats}) > 1, "every image changed alike: a weak setting"


class Fed:
    """A model that notes the last position of every call."""

    def __init__(self, model: ImageGPT) -> None:
        self._model, self.positions = model, [-1]
        self.config, self.prefix, self.new_cache = model.config, model.prefix, model.new_cache

    def __call__(self, tokens: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        self.positions += positions.ravel().tolist()
        return self._model(tokens, positions, *rest)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "method",
    [
        AR(),
        ZipAR(window=2),
        MuLoSD(tau=0.02, pool_k=2, radius=0),
        MuLoSD(tau=0.02, pool_k=2, radius=0, rows_per_cycle=1),
        MuLoSD(tau=0.02, pool_k=2, radius=0, rows_per_cycle=1, resample="serial"),
        MuLoSD(tau=0.02, pool_k=2, radius=0, resample="serial", kv="stale"),
        MuLoSD(tau=0.02, pool_k=2, rejection="raster-redraft"),
    ],
    ids=str,
)
def test_the_last_cell_is_never_fed(method: SamplerKnobs) -> None:
    """No cell comes after it, and AR-DTok's table of positions ends before it."""
    models: list[Fed] = []

    def wrap(model: ImageGPT) -> Any:
        models.append(Fed(model))
        return models[0]

    result = toys.run(method, wrap=wrap)
    last = result.tokens[0].size - 1
    assert max(models[0].positions) == last - 1
    if isinstance(method, MuLoSD):
        assert (result.status.reshape(3, -1)[:, -1] == STATUS_ACCEPTED).any(), "every last draft is drawn again"
