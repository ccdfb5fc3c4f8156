"""The control that stops at the draft."""

from mulosd.decoding.draft import draft_block, next_block
from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.methods import DraftOnly
from mulosd.types import STATUS_ACCEPTED


@inference
def decode_draft_only(job: Job, method: DraftOnly) -> Result:
    """The up-sampled draft untouched: MuLo-SD with tau <= 0 and without its verification forward."""
    target, drafter = job.target_engine(), job.draft_engine()
    draft_block(job, target, drafter, next_block(target, drafter, drafter.grid), method.draft_window)
    job.status[:] = STATUS_ACCEPTED
    for stats in job.stats:
        stats.accepted = stats.drafted
    job.snapshot(target)
    return finish(job, target)
