"""Filling pending cells in a staggered front: ZipAR, concurrent rejection islands and their union.

A cell runs once its island's pending cells earlier in its row, and those in earlier rows with
column < its column + window, are done. ZipAR (arXiv 2412.04062) is the case of one island that covers the grid,
with its first row serial. A pending row end in the same island is replaced provisionally by
the most recent token of the row above; one in another island is awaited.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mulosd.decoding.engine import Engine, Queries
from mulosd.types import Bools, Ints

Recorder = Callable[[Engine], None]


class Cell(NamedTuple):
    """A grid cell."""

    row: int
    col: int


class Worklist:
    """Pending cells of one image, grouped by island and row; says which may run now.

    labels: int [H, W], 0 = not pending, k > 0 = island k. Row-major columns are taken in order.
    """

    def __init__(self, labels: Ints, window: int, *, first_row_serial: bool = False) -> None:
        self.labels = labels
        self.window = window
        self.first_row_serial = first_row_serial
        self.pending: Bools = labels > 0
        self._rows: dict[int, dict[int, list[int]]] = {}
        for row, col in zip(*np.nonzero(labels), strict=True):
            self._rows.setdefault(int(labels[row, col]), {}).setdefault(int(row), []).append(int(col))

    @property
    def is_done(self) -> bool:
        """True when nothing is pending."""
        return not self._rows

    def ready(self) -> list[Cell]:
        """Cells that may run now; depends on what is pending only, never on an order of islands."""
        cells = []
        for label, rows in self._rows.items():
            smallest = self.labels.shape[1] + self.window
            for row, cols in rows.items():
                if cols[0] + self.window <= smallest and not self._awaits_row_end(label, row, cols[0]):
                    cells.append(Cell(row, cols[0]))
                smallest = min(smallest, cols[0])
                if self.first_row_serial and row == 0:
                    break
        return cells

    def finish(self, cells: Sequence[Cell]) -> None:
        """Mark cells as done."""
        for row, col in cells:
            label = int(self.labels[row, col])
            rows = self._rows[label]
            assert rows[row][0] == col
            rows[row].pop(0)
            self.pending[row, col] = False
            if not rows[row]:
                del rows[row]
            if not rows:
                del self._rows[label]

    def _awaits_row_end(self, label: int, row: int, col: int) -> bool:
        if col > 0 or row == 0 or not self.pending[row - 1, -1]:
            return False
        return bool(self.labels[row - 1, -1] != label)


def fill(engine: Engine, worklists: Sequence[Worklist], kind: str, record: Recorder | None = None) -> None:
    """Draw every pending cell of every image; one forward per front, counted as `kind`."""
    while not all(work.is_done for work in worklists):
        ready = [work.ready() for work in worklists]
        assert any(ready), "pending cells wait for each other"
        queries, picks = zip(
            *(_front(engine, b, work, cells) for b, (work, cells) in enumerate(zip(worklists, ready, strict=True))),
            strict=True,
        )
        _draw_front(engine, queries, picks, ready, kind)
        for work, cells in zip(worklists, ready, strict=True):
            work.finish(cells)
        if record:
            record(engine)


def _front(engine: Engine, b: int, work: Worklist, cells: Sequence[Cell]) -> tuple[Queries, list[int]]:
    """Queries of one image: the predecessor of every ready cell, then decided tokens not fed yet but the grid's last.

    Also the query index of each cell, -1 for cell 0, which is sampled from the prefix's own logits. An image that
    is done, or draws only cell 0, has no query, so that it takes no forward of its batch.
    """
    queries, picks = Queries.empty(), []
    grid = engine.grid
    for row, col in cells:
        before = row * grid + col - 1
        if before < 0:
            picks.append(-1)
        elif col > 0 or not work.pending[row - 1, -1]:
            picks.append(queries.add(int(engine.tokens[b, before]), before, before, row))
        else:
            known = np.nonzero(~work.pending[row - 1])[0]
            stand_in = int(engine.tokens[b, (row - 1) * grid + known[-1]])
            engine.provisional[b, row] = True
            picks.append(queries.add(stand_in, before, engine.num_tokens + row, row))
    if not queries.tokens:
        return queries, picks
    fed = set(queries.slots)
    for position in np.nonzero((engine.decided[b] & ~engine.committed[b])[:-1])[0]:  # no cell sees the last one
        if int(position) not in fed:
            queries.add(int(engine.tokens[b, position]), int(position), int(position), int(position) // grid)
    return queries, picks


def _draw_front(
    engine: Engine,
    queries: Sequence[Queries],
    picks: Sequence[list[int]],
    ready: Sequence[Sequence[Cell]],
    kind: str,
) -> None:
    needs_start = any(-1 in pick for pick in picks)
    start = engine.start_logits(kind)[:, None] if needs_start else None
    logits = engine.feed(queries, kind) if any(q.tokens for q in queries) else None
    both = [part for part in (start, logits) if part is not None]
    if not both:
        return
    joined = torch.cat(both, dim=1)
    shift = 1 if start is not None else 0
    width = max(len(cells) for cells in ready)
    index, positions = np.zeros((2, engine.batch, width), np.int64)
    for b, (pick, cells) in enumerate(zip(picks, ready, strict=True)):
        index[b, : len(pick)] = [0 if i < 0 else i + shift for i in pick]
        positions[b, : len(cells)] = [row * engine.grid + col for row, col in cells]
    chosen = joined.gather(1, torch.from_numpy(index).to(joined.device)[..., None].expand(-1, -1, joined.shape[-1]))
    codes = engine.draw(chosen, positions)
    for b, cells in enumerate(ready):
        where = positions[b, : len(cells)]
        engine.tokens[b, where] = codes[b, : len(cells)]
        engine.decided[b, where] = True
        engine.committed[b, where] = False
