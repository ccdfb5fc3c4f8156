"""Multi-Scale Local Speculative Decoding (arXiv 2601.05149; decoding.md 1): the cycle.

draft low rows -> up-sample -> verify all in one forward -> expand the rejections locally -> resample -> next
rows. `rows_per_cycle = all` makes one cycle of it. Serial resampling carries the K/V of accepted tokens along
(option C of decoding.md 1.6), so tau > 1 is AR token for token; concurrent islands leave them stale during the
round and, when more cycles follow, refresh the block with one forward (options A, then B).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mulosd.decoding import sampling, verify
from mulosd.decoding.draft import draft_rows
from mulosd.decoding.engine import Bools, Engine, Ints, Queries
from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.decoding.wavefront import Worklist, fill
from mulosd.methods import MuLoSD
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED


@dataclass(frozen=True)
class Block:
    """Target cells [start, stop) of one cycle, whole rows."""

    start: int
    stop: int


@inference
def decode_mulosd(job: Job, method: MuLoSD) -> Result:
    """All cycles of a batch; see `mulosd.methods.MuLoSD` for the knobs."""
    target, drafter = job.target_engine(), job.draft_engine()
    ratio = target.grid // drafter.grid
    rows = drafter.grid if method.rows_per_cycle == "all" else method.rows_per_cycle
    unfed = np.full(job.batch, -1)  # first position whose K/V the next verification must write
    for low in range(0, drafter.grid, rows):
        high = min(low + rows, drafter.grid)
        block = Block(low * ratio * target.grid, high * ratio * target.grid)
        draft_rows(job, target, drafter, low, high, method.draft_window)
        job.snapshot(_as_drafted(target, block))
        with job.timed("verify"):
            logits = _verification_forward(target, block, unfed)
            rejected, resampled = _judge(job, method, target, block, logits)
        with job.timed("resample"):
            _decide_accepted(target, block, resampled)
            job.snapshot(target)
            if method.resample == "serial":
                unfed = _resample_serial(job, target, block, resampled, logits)
            else:
                unfed = _resample_islands(job, method, target, block, resampled)
        _account(job, target, block, rejected, resampled)
    return finish(job, target)


def _as_drafted(target: Engine, block: Block) -> Engine:
    target.decided[:, block.start : block.stop] = True
    return target


def _verification_forward(target: Engine, block: Block, unfed: Ints) -> Tensor:
    """One causal forward over what is unfed and the drafts; logits [B, M, V] of the block's M cells.

    Cell p is judged by the output at p - 1, so the block's last draft is not fed.
    """
    queries = []
    for b in range(target.batch):
        span = range(max(int(unfed[b]), 0), block.stop - 1)
        queries.append(_chain(target, b, span))
    logits = target.feed(queries, "verify", causal=True)
    size = block.stop - block.start
    if block.start == 0:
        return torch.cat([target.start_logits("verify")[:, None], logits], dim=1)
    return torch.stack([logits[b, len(q.tokens) - size : len(q.tokens)] for b, q in enumerate(queries)])


def _chain(target: Engine, b: int, span: range) -> Queries:
    tokens = [int(target.tokens[b, position]) for position in span]
    return Queries(tokens, list(span), list(span), [-1] * len(span))


def _judge(job: Job, method: MuLoSD, target: Engine, block: Block, logits: Tensor) -> tuple[Bools, Bools]:
    """R_T and R_X as maps [B, H, W]: pooled mass below tau, and its local expansion."""
    assert job.neighbours is not None
    drafts = torch.from_numpy(target.tokens[:, block.start : block.stop]).to(logits.device)
    probs = sampling.probabilities(logits, target.sampler)
    passed = verify.pooled_mass(probs, drafts, job.neighbours(method.pool_k)) >= method.tau
    failed = np.zeros((target.batch, target.num_tokens), bool)
    failed[:, block.start : block.stop] = ~passed.cpu().numpy()
    rejected: Bools = failed.reshape(-1, target.grid, target.grid)
    allowed = np.zeros((target.grid, target.grid), bool)
    allowed.flat[block.start : block.stop] = True
    resampled = np.zeros_like(rejected)
    for b, cells in enumerate(rejected):
        if cells.any():
            resampled[b] = verify.expand(cells, method.radius, int(cells.ravel().argmax()), allowed)
    return rejected, resampled


def _decide_accepted(target: Engine, block: Block, resampled: Bools) -> None:
    """Cells to resample become undecided, and their drafts' K/V invisible."""
    pending = resampled.reshape(target.batch, -1)[:, block.start : block.stop]
    target.decided[:, block.start : block.stop] = ~pending
    target.committed[:, block.start : block.stop] &= ~pending


def _resample_serial(job: Job, target: Engine, block: Block, resampled: Bools, logits: Tensor) -> Ints:
    """Raster order; the first cell is drawn from the verification logits, each further one from a forward
    that carries every token since the last drawn one. Returns the first unfed position per image."""
    todo = [np.nonzero(cells.ravel())[0] for cells in resampled]
    unfed = np.full(target.batch, block.stop - 1)
    for step in range(max((len(cells) for cells in todo), default=0)):
        active = [b for b in range(target.batch) if step < len(todo[b])]
        positions = np.zeros((target.batch, 1), np.int64)
        for b in active:
            positions[b] = todo[b][step]
        if step:
            chains = [
                _chain(target, b, range(int(unfed[b]), int(positions[b, 0]))) if b in active else Queries.empty()
                for b in range(target.batch)
            ]
            output = target.feed(chains, "resample", causal=True)
            last = torch.tensor([max(len(chain.tokens) - 1, 0) for chain in chains], device=output.device)
        else:
            output = logits
            last = torch.from_numpy(positions[:, 0]).to(output.device).sub(block.start).clamp(min=0)
        codes = target.draw(output[torch.arange(target.batch), last][:, None], positions)
        for b in active:
            unfed[b] = positions[b, 0]
            target.tokens[b, unfed[b]] = codes[b, 0]
            target.decided[b, unfed[b]] = True
        job.snapshot(target)
    return unfed


def _resample_islands(job: Job, method: MuLoSD, target: Engine, block: Block, resampled: Bools) -> Ints:
    """All islands at once; then, if cycles follow, one refresh forward of the changed blocks."""
    worklists = [Worklist(verify.islands(cells), method.island_window) for cells in resampled]
    fill(target, worklists, "resample", job.snapshot)
    if block.stop < target.num_tokens:
        _refresh(target, block, resampled)
    return np.full(target.batch, block.stop - 1)


def _refresh(target: Engine, block: Block, resampled: Bools) -> None:
    """Rewrite the K/V of a changed block, its last cell excepted (the next verification feeds that)."""
    changed = np.asarray(resampled.any((1, 2)))
    if changed.any():
        span = range(block.start, block.stop - 1)
        chains = [_chain(target, b, span) if changed[b] else Queries.empty() for b in range(target.batch)]
        target.feed(chains, "refresh", causal=True)


def _account(job: Job, target: Engine, block: Block, rejected: Bools, resampled: Bools) -> None:
    rows = slice(block.start // target.grid, block.stop // target.grid)
    status = np.full(resampled.shape, STATUS_ACCEPTED, np.uint8)
    status[resampled] = STATUS_EXPANDED
    status[rejected] = STATUS_REJECTED
    job.status[:, rows] = status[:, rows]
    for b, stats in enumerate(job.stats):
        stats.cycles += 1
        stats.rejected += int(rejected[b].sum())
        stats.resampled += int(resampled[b].sum())
        stats.expanded += int((resampled[b] & ~rejected[b]).sum())
        stats.accepted += block.stop - block.start - int(rejected[b].sum())
