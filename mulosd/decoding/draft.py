"""Drafting on the low-resolution grid, and the control that stops there."""

import torch

from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.decoding.zipar import fill_rows
from mulosd.methods import DraftOnly
from mulosd.types import STATUS_ACCEPTED


@inference
def decode_draft_only(job: Job, method: DraftOnly) -> Result:
    """The up-sampled draft untouched: MuLo-SD with tau <= 0 and without its verification forward."""
    target, drafter = job.target_engine(), job.draft_engine()
    draft_rows(job, target, drafter, 0, drafter.grid, method.draft_window)
    target.decided[:] = True
    job.status[:] = STATUS_ACCEPTED
    for stats in job.stats:
        stats.accepted = stats.drafted
    job.snapshot(target)
    return finish(job, target)


def draft_rows(job: Job, target: Engine, drafter: Engine, start: int, stop: int, window: int) -> None:
    """Draft the low rows start .. stop-1 and write their up-sampled codes into the target's tokens.

    The written tokens are drafts: neither decided nor committed.
    """
    assert job.upsampler is not None
    with job.timed("draft"):
        fill_rows(drafter, start, stop, window, "draft")
    with job.timed("upsample"):
        low = torch.from_numpy(drafter.tokens[:, : stop * drafter.grid]).to(job.seeds.device)
        high = job.upsampler(low.view(job.batch, stop, drafter.grid), start)
    ratio = target.grid // drafter.grid
    first, last = start * ratio * target.grid, stop * ratio * target.grid
    target.tokens[:, first:last] = high.flatten(1).cpu().numpy()
    for stats in job.stats:
        stats.drafted += last - first
