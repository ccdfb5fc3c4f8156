"""A worker: runs tasks with the target and the evaluators that it has loaded. One per actor or process."""

import os
import socket
from collections.abc import Callable
from typing import Any

from pipelines.host import timing_lock as devices
from pipelines.work.decode import decode_chunk, fail_chunk
from pipelines.work.encode import encode_chunk
from pipelines.work.score import score_chunk
from pipelines.work.tasks import DecodeTask, EncodeTask, EvaluatorSpec, Report, ScoreTask, TargetSpec, Task, resolve


class Worker:
    """Runs tasks with loaded targets and evaluators kept between them. One target, or the encoder of one, at a time, to
    bound memory."""

    def __init__(self) -> None:
        self._target: tuple[TargetSpec, Any] | None = None
        self._evaluators: dict[EvaluatorSpec, Any] = {}

    def run(self, task: Task) -> Report:
        """The report of one task; it waits while a bench run is timing on this host."""
        with devices.working():
            return RUN[type(task)](task, self)

    def describe(self) -> dict[str, Any]:
        """Where it runs and with what."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def target(self, spec: TargetSpec) -> Any:
        """The loaded target or encoder."""
        if self._target is None or self._target[0] != spec:
            self._target = None  # before the next one: two would not fit
            self._target = (spec, resolve(spec.loader)(spec.target_id, device=spec.device, dtype=spec.dtype))
        return self._target[1]

    def evaluator(self, spec: EvaluatorSpec) -> Any:
        """The prepared evaluator."""
        if spec not in self._evaluators:
            evaluator = resolve(spec.builder)(spec.name, **dict(spec.context))
            evaluator.prepare()
            self._evaluators[spec] = evaluator
        return self._evaluators[spec]


# Kind of task -> how a worker runs it.
RUN: dict[type, Callable[[Any, Worker], Report]] = {
    DecodeTask: lambda task, worker: decode_chunk(task, worker.target(task.target)),
    EncodeTask: lambda task, worker: encode_chunk(task, worker.target(task.target)),
    ScoreTask: lambda task, worker: score_chunk(task, worker.evaluator(task.evaluator)),
}


def fail_task(task: Task, reason: str) -> Report | None:
    """The published report of a task that no worker survives; None for kinds whose failure ends the run."""
    return fail_chunk(task, reason) if isinstance(task, DecodeTask) else None


_task_worker: list[Worker] = []  # of a process that runs tasks: evaluators are prepared once per process


def run_in_worker(task: Task) -> Report:
    """Run a task with what this process keeps from earlier ones."""
    if not _task_worker:
        _task_worker.append(Worker())
    return _task_worker[0].run(task)
