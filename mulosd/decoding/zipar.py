"""ZipAR (decoding.md 2.6): rows in a staggered front, the first row serial."""

import numpy as np

from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Job, Result, finish, inference
from mulosd.decoding.wavefront import Recorder, Worklist, fill
from mulosd.methods import ZipAR


@inference
def decode_zipar(job: Job, method: ZipAR) -> Result:
    """2W + (H - 2) * window forwards; window >= W gives AR token for token."""
    engine = job.target_engine()
    with job.timed("resample"):
        fill_rows(engine, 0, engine.grid, method.window, "resample", job.snapshot)
    return finish(job, engine)


def fill_rows(engine: Engine, start: int, stop: int, window: int, kind: str, record: Recorder | None = None) -> None:
    """Draw grid rows start .. stop-1 of every image in a staggered front."""
    labels = np.zeros((engine.grid, engine.grid), np.int64)
    labels[start:stop] = 1
    fill(engine, [Worklist(labels, window, first_row_serial=True) for _ in range(engine.batch)], kind, record)
