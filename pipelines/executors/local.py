"""Executors: tasks -> outcomes, in this process or on Ray, with one contract and the same results.

    Executor.map(tasks) -> Iterator[Outcome]     in completion order, each task exactly once

A sample that a decoder cannot decode is a failed row inside its chunk. Whatever else a task raises ends the
iteration with that exception: a UserError reads the same from either executor, a bug keeps its traceback.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.work.tasks import Outcome, Task
from pipelines.work.worker import Worker


class InProcessExecutor:
    """Runs tasks one after the other in this process."""

    def __init__(self) -> None:
        self._worker = Worker()

    def map(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in the order of the tasks."""
        for task in tasks:
            yield Outcome(task, self._worker.run(task))

    def close(self) -> None:
        """Drop the weights."""
        self._worker = Worker()

    def describe(self) -> dict[str, Any]:
        """Kind, workers and threads."""
        import torch

        return {"executor": "inprocess", "workers": 1, "threads": torch.get_num_threads()}
