"""A driver of its own process: `python -m tests.ray.drive OUT EXECUTOR [KILL_AT]`.

It runs the toy sweep, prints "begun" before its first chunk, and with KILL_AT ends like a killed process: at chunk
report number |KILL_AT|, before the chunk is recorded (negative) or after it (positive).
"""

import os
import signal
import sys
from typing import Any

from pipelines.plan import build as plan
from pipelines.run import driver
from tests import fakes


def main(out: str, executor: str, kill_at: int = 0) -> None:
    """Run the sweep into `out`."""
    plan.load_prompt_set = lambda spec: (fakes.prompts(), "toy-prompts-1")
    record = driver._record_chunk
    seen = 0

    def recording(*args: Any) -> None:
        nonlocal seen
        seen += 1
        if -seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        record(*args)
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def shown(at: driver.Progress) -> None:
        if at.stage == "decode":
            print("done", at.done, flush=True)

    driver._record_chunk = recording
    print(driver.run_sweep(fakes.toy_sweep(), out=out, executor=executor, progress=shown).summary(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
