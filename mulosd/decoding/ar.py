"""Plain autoregressive decoding: the baseline. One forward per token, the first carries the prefix."""

from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.methods import AR


@inference
def decode_ar(job: Job, method: AR) -> Result:
    """N forwards for N tokens; every image of the batch advances in lockstep."""
    engine = job.target_engine()
    with job.timed("resample"):
        logits = engine.start_logits("resample")
        for position in range(engine.num_tokens):
            if position:
                logits = engine.feed_lockstep(position - 1, "resample")
            engine.draw_lockstep(logits, position)
            job.snapshot(engine)
    return finish(job, engine)
