"""ZipAR (arXiv 2412.04062): rows in a staggered front, the first row serial."""

import numpy as np

from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.decoding.wavefront import Worklist, fill
from mulosd.methods import ZipAR


@inference
def decode_zipar(job: Job, method: ZipAR) -> Result:
    """2W + (H - 2) * window forwards; window >= W gives AR token for token."""
    engine = job.target_engine()
    whole = np.ones((engine.grid, engine.grid), np.int64)
    worklists = [Worklist(whole, method.window, first_row_serial=True) for _ in range(job.batch)]
    with job.timed("resample"):
        fill(engine, worklists, "resample", job.snapshot)
    return finish(job, engine)
