"""Drafting on the low-resolution grid, and feedback from the finished image."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Job
from mulosd.decoding.wavefront import Worklist, fill
from mulosd.types import Bools, Ints


@dataclass(frozen=True)
class Block:
    """What each image drafts and verifies in one cycle; images advance on their own, and a done one has nothing left.

    low, high [B]: its draft rows low .. high-1; start, stop [B]: its target cells start .. stop-1, where start is the
    first undecided one and stop the end of the draft rows.
    """

    low: Ints
    high: Ints
    start: Ints
    stop: Ints

    @property
    def sizes(self) -> Ints:
        """Drafted target cells [B]."""
        return self.stop - self.start

    def cells(self, num_tokens: int) -> Bools:
        """The drafted target cells as a map [B, N]."""
        index = np.arange(num_tokens)
        inside: Bools = (index >= self.start[:, None]) & (index < self.stop[:, None])
        return inside


def next_block(target: Engine, drafter: Engine, rows: int) -> Block:
    """The block of up to `rows` draft rows from the one that covers each image's first undecided cell."""
    row_cells = target.num_tokens // drafter.grid  # target cells under one draft row
    start = np.where(target.decided.all(1), target.num_tokens, target.decided.argmin(1))
    low = start // row_cells
    high = np.minimum(low + rows, drafter.grid)
    return Block(low, high, start, high * row_cells)


def draft_block(job: Job, target: Engine, drafter: Engine, block: Block, window: int) -> None:
    """Draft the block's rows again and write their up-sampled codes into the target's undecided cells.

    They count as decided until the verification opens some again; none is committed.
    """
    labels = np.zeros((job.batch, drafter.grid, drafter.grid), np.int64)
    for b in range(job.batch):
        drafter.forget(b, int(block.low[b]) * drafter.grid)
        labels[b, block.low[b] : block.high[b]] = 1
    with job.timed("draft"):
        fill(drafter, [Worklist(own, window, first_row_serial=True) for own in labels], "draft")
    with job.timed("upsample"):
        for images, cells, codes in _resized(job, "upsample", drafter, target, block.low, block.high):
            kept = target.decided[images, cells]
            target.tokens[images, cells] = np.where(kept, target.tokens[images, cells], codes)
    target.decided |= block.cells(target.num_tokens)
    for stats, drafted in zip(job.stats, block.sizes, strict=True):
        stats.drafted += int(drafted)


def feed_back(job: Job, target: Engine, drafter: Engine, block: Block) -> None:
    """D_r: in the draft rows that this cycle finished, the target's image scaled down takes the place
    of the drafter's tokens, and one forward of the drafter, counted as a draft forward, rebuilds their K/V.

    Their last cell is left to the next draft, which feeds it in any case; an image that is done has no next draft.
    """
    following = next_block(target, drafter, 1)
    high = np.where(following.sizes > 0, following.low, block.low)
    with job.timed("downsample"):
        for images, cells, codes in _resized(job, "downsample", target, drafter, block.low, high):
            drafter.tokens[images, cells] = codes
    with job.timed("draft"):
        spans = zip(block.low * drafter.grid, high * drafter.grid - 1, strict=True)
        chains = [drafter.chain(b, range(first, last)) for b, (first, last) in enumerate(spans)]
        if any(chain.tokens for chain in chains):
            drafter.feed(chains, "draft", causal=True)


def _resized(
    job: Job, phase: Literal["upsample", "downsample"], source: Engine, sink: Engine, low: Ints, high: Ints
) -> Iterator[tuple[Ints, slice, Ints]]:
    """Codes of the draft rows low .. high-1 (one span per image) taken from one grid to the other.

    Per distinct span: the images that share it, the sink's cells and their codes [images, cells].
    """
    resize = job.upsampler if phase == "upsample" else job.downsampler
    assert resize is not None
    draft_grid = min(source.grid, sink.grid)
    known, made = source.grid // draft_grid, sink.num_tokens // draft_grid  # source rows, sink cells per draft row
    for first, last in sorted({(int(a), int(b)) for a, b in zip(low, high, strict=True) if a < b}):
        images = np.nonzero((low == first) & (high == last))[0]
        codes = source.tokens[images].reshape(-1, source.grid, source.grid)[:, : last * known]
        resized = resize(torch.from_numpy(codes).to(source.seeds.device), first)
        made_codes = resized.flatten(1).cpu().numpy()
        job.finite.fail(phase, images[(made_codes < 0).any(1)].tolist())
        yield images, slice(first * made, last * made), np.maximum(made_codes, 0)
