"""Multi-Scale Local Speculative Decoding (arXiv 2601.05149): the cycle of docs/mulosd.md.

draft low rows -> up-sample -> verify all in one forward -> spread the rejections -> resample -> next rows.
`rows_per_cycle = all` makes one cycle of it. Serial resampling feeds accepted tokens again (option C of docs/mulosd.md
"K/V after resampling"), so tau > 1 is AR token for token; concurrent islands leave their K/V stale during the round
and, when more cycles follow, refresh the block with one forward (options A, then B). A token whose K/V is missing or
out of date when a cycle ends is marked uncommitted, and the next verification feeds it along.
"""

import numpy as np
import torch
from torch import Tensor

from mulosd.decoding import rejection, verify
from mulosd.decoding.draft import Block, draft_block, feed_back, next_block
from mulosd.decoding.engine import Engine, Queries
from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.decoding.wavefront import Worklist, fill
from mulosd.methods import MuLoSD
from mulosd.sampling import filters as sampling
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED, Bools


@inference
def decode_mulosd(job: Job, method: MuLoSD) -> Result:
    """All cycles of a batch; see `mulosd.methods.MuLoSD` for the knobs."""
    target, drafter = job.target_engine(), job.draft_engine()
    rows = drafter.grid if method.rows_per_cycle == "all" else method.rows_per_cycle
    while (block := next_block(target, drafter, rows)).sizes.any():
        draft_block(job, target, drafter, block, method.draft_window)
        job.snapshot(target)
        with job.timed("verify"):
            logits = _verification_forward(target, block)
            rejected, resampled = _judge(job, method, target, block, logits)
        with job.timed("resample"):
            _open_again(method, target, rejected, resampled)
            job.snapshot(target)
            _resample(job, method, target, block, resampled, logits)
        _account(job, block, rejected, resampled)
        if method.feedback == "downsample":
            feed_back(job, target, drafter, block)
        drafter.iteration += method.redrafts
    return finish(job, target)


def _verification_forward(target: Engine, block: Block) -> Tensor:
    """One causal forward over earlier tokens without valid K/V and the drafts: logits [B, M, V] of the blocks' cells.

    Cell p is judged by the output at p - 1, so the token before the block is always fed and the block's last draft
    is not. M is the size of the largest block; what follows an image's own block is meaningless.
    """
    chains = []
    for b, (start, stop) in enumerate(zip(block.start, block.stop, strict=True)):
        due = target.decided[b] & ~target.committed[b]
        due[start - 1 : start] = True
        due[stop - 1 :] = False
        chains.append(target.chain(b, np.nonzero(due)[0] if start < stop else ()))
    fed = target.feed(chains, "verify", causal=True)
    logits = torch.cat([target.start_logits("verify")[:, None], fed], dim=1)
    fed_before = np.array([len(chain.tokens) for chain in chains]) + 1 - block.sizes
    index = np.minimum(fed_before[:, None] + np.arange(block.sizes.max()), logits.shape[1] - 1)
    return logits[torch.arange(target.batch, device=logits.device)[:, None], torch.from_numpy(index).to(logits.device)]


def _judge(job: Job, method: MuLoSD, target: Engine, block: Block, logits: Tensor) -> tuple[Bools, Bools]:
    """R_T and R_X as maps [B, H, W]: pooled mass below tau, and what the rejection policy makes of it."""
    assert job.neighbours is not None
    cells = np.minimum(block.start[:, None] + np.arange(logits.shape[1]), target.num_tokens - 1)
    drafts = torch.from_numpy(np.take_along_axis(target.tokens, cells, axis=1)).to(logits.device)
    sampler = target.sampler if method.pooling == "filtered" else sampling.without_filters(target.sampler)
    probs = sampling.probabilities(logits, sampler)
    mass = verify.pooled_mass(probs, drafts, job.neighbours(method.pool_k)).cpu().numpy()
    verdicts = [
        rejection.judge(method, own[:size], int(start), target.grid)
        for own, size, start in zip(mass, block.sizes, block.start, strict=True)
    ]
    if method.resampled_fraction is not None:
        for stats, verdict, size in zip(job.stats, verdicts, block.sizes, strict=True):
            stats.chosen_taus += [verdict.tau] if size else []
    return np.stack([verdict.rejected for verdict in verdicts]), np.stack([verdict.resampled for verdict in verdicts])


def _open_again(method: MuLoSD, target: Engine, rejected: Bools, resampled: Bools) -> None:
    """Rejected and resampled cells become undecided and, unless they stay visible, their drafts' K/V invisible."""
    pending = (rejected | resampled).reshape(target.batch, -1)
    target.decided &= ~pending
    if method.pending == "masked":
        target.committed &= ~pending


def _resample(job: Job, method: MuLoSD, target: Engine, block: Block, resampled: Bools, logits: Tensor) -> None:
    """Draw R_X from the target by the schedule and K/V policy of the method."""
    if method.kv_policy == "carry":
        _draw_first(job, target, block, resampled, logits)
        _carry(job, target, block, resampled)
        return
    if method.resample == "serial":
        _draw_first(job, target, block, resampled, logits)
        left = resampled & ~target.decided.reshape(resampled.shape)
        worklists = [Worklist(cells.astype(np.int64), target.grid) for cells in left]
    else:
        worklists = [Worklist(verify.islands(cells), method.island_window) for cells in resampled]
    fill(target, worklists, "resample", job.snapshot)
    if method.kv_policy == "refresh":
        _refresh(target, block, resampled)


def _draw_first(job: Job, target: Engine, block: Block, resampled: Bools, logits: Tensor) -> None:
    """Draw the first cell of R_X from the verification logits, which no change has made stale, without a forward."""
    flat = resampled.reshape(target.batch, -1)
    first = flat.argmax(1)
    index = torch.from_numpy((first - block.start).clip(0, logits.shape[1] - 1)).to(logits.device)
    codes = target.draw(logits[torch.arange(target.batch, device=logits.device), index][:, None], first[:, None])
    for b in np.nonzero(flat.any(1))[0]:
        target.tokens[b, first[b]] = codes[b, 0]
        target.decided[b, first[b]] = True
    if flat.any():
        job.snapshot(target)


def _carry(job: Job, target: Engine, block: Block, resampled: Bools) -> None:
    """Sample the rest of R_X in raster order; each forward carries every token since the last sampled one.

    What follows the last one is out of date: the next verification carries it.
    """
    todo = [np.nonzero(cells.ravel())[0] for cells in resampled]
    for step in range(1, max(len(cells) for cells in todo)):
        active = [b for b in range(target.batch) if step < len(todo[b])]
        positions = np.zeros((target.batch, 1), np.int64)
        chains = [Queries.empty() for _ in range(target.batch)]
        for b in active:
            positions[b] = todo[b][step]
            chains[b] = target.chain(b, range(todo[b][step - 1], todo[b][step]))
        output = target.feed(chains, "resample", causal=True)
        last = torch.tensor([max(len(chain.tokens) - 1, 0) for chain in chains], device=output.device)
        codes = target.draw(output[torch.arange(target.batch), last][:, None], positions)
        for b in active:
            target.tokens[b, positions[b]] = codes[b]
            target.decided[b, positions[b]] = True
        job.snapshot(target)
    for b, cells in enumerate(todo):
        if len(cells):
            target.committed[b, cells[-1] : block.stop[b]] = False


def _refresh(target: Engine, block: Block, resampled: Bools) -> None:
    """Rewrite the K/V of changed blocks when cycles follow; the next verification feeds their last cell anyway."""
    chains = [
        target.chain(b, range(block.start[b], block.stop[b] - 1 if cells.any() else block.start[b]))
        for b, cells in enumerate(resampled)
    ]
    if not target.decided.all() and any(chain.tokens for chain in chains):
        target.feed(chains, "refresh", causal=True)


def _account(job: Job, block: Block, rejected: Bools, resampled: Bools) -> None:
    """Counters and the status map; a later cycle paints over what this one discards."""
    status = np.full(resampled.shape, STATUS_ACCEPTED, np.uint8)
    status[resampled] = STATUS_EXPANDED
    status[rejected] = STATUS_REJECTED
    cells = block.cells(resampled[0].size).reshape(resampled.shape)
    job.status[cells] = status[cells]
    for b, (stats, size) in enumerate(zip(job.stats, block.sizes, strict=True)):
        stats.cycles += bool(size)
        stats.rejected += int(rejected[b].sum())
        stats.resampled += int(resampled[b].sum())
        stats.expanded += int((resampled[b] & ~rejected[b]).sum())
        stats.accepted += int(size - rejected[b].sum())
