"""The executor that a command names, opened and closed."""

import contextlib
from collections.abc import Iterator, Mapping

from mulosd.errors import unknown_name
from pipelines.executors.local import InProcessExecutor
from pipelines.work.tasks import Executor

EXECUTORS = ("inprocess", "ray")


@contextlib.contextmanager
def open_executor(
    kind: str, *, device: str = "cpu", workers: int | None = None, num_gpus: Mapping[str, float] | None = None
) -> Iterator[Executor]:
    """The executor named `kind` ("inprocess" or "ray"), closed at the end. num_gpus: see `RayExecutor`."""
    if kind not in EXECUTORS:
        raise unknown_name("executor", kind, EXECUTORS)
    executor: Executor
    if kind == "ray":
        from pipelines.executors.ray_executor import RayExecutor

        executor = RayExecutor(device=device, workers=workers, num_gpus=num_gpus)
    else:
        executor = InProcessExecutor()
    try:
        yield executor
    finally:
        executor.close()
