"""Executors: tasks -> outcomes, in this process or on Ray, with one contract and the same results.

    Executor.map(tasks) -> Iterator[Outcome]     in completion order, each task exactly once

A sample that a decoder cannot decode is a failed row inside its chunk. Whatever else a task raises ends the
iteration with that exception: a UserError reads the same from either executor, a bug keeps its traceback.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from mulosd.errors import ConfigError, unknown_name
from pipelines.host import timing_lock as devices
from pipelines.work.conditions import EncodeReport, EncodeTask, encode_chunk
from pipelines.work.decode import ChunkReport, DecodeTask, TargetSpec, decode_chunk
from pipelines.work.score import EvaluatorSpec, ScoreTask, StateReport, score_chunk

Task = DecodeTask | EncodeTask | ScoreTask
Report = ChunkReport | EncodeReport | StateReport

EXECUTORS = ("inprocess", "ray")


@dataclass(frozen=True)
class Outcome:
    """A finished task and its report."""

    task: Any
    report: Any


class Executor(Protocol):
    """Runs tasks. Use as a context manager, so that workers end."""

    def map(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in completion order."""
        ...

    def close(self) -> None:
        """Release workers and weights."""
        ...

    def describe(self) -> dict[str, Any]:
        """Kind, workers and threads, for the record of a run."""
        ...


class Worker:
    """Runs tasks with loaded targets and evaluators kept between them. One target, or the encoder of one, at a time, to
    bound memory."""

    def __init__(self) -> None:
        self._target: tuple[TargetSpec, Any] | None = None
        self._evaluators: dict[EvaluatorSpec, Any] = {}

    def run(self, task: Task) -> Report:
        """The report of one task; it waits while a bench run is timing on this host."""
        with devices.working():
            return self._run(task)

    def _run(self, task: Task) -> Report:
        if isinstance(task, DecodeTask):
            return decode_chunk(task, self.target(task.target))
        if isinstance(task, EncodeTask):
            return encode_chunk(task, self.target(task.target))
        return score_chunk(task, self.evaluator(task.evaluator))

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


_task_worker: list[Worker] = []  # of a process that runs tasks: evaluators are prepared once per process


def run_in_worker(task: Task) -> Report:
    """Run a task with what this process keeps from earlier ones."""
    if not _task_worker:
        _task_worker.append(Worker())
    return _task_worker[0].run(task)


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


def resolve(target: str) -> Any:
    """The attribute that "package.module:attribute" names."""
    module, sign, attribute = target.partition(":")
    if not sign:
        raise ConfigError(f"{target!r} is no import target; write package.module:attribute.")
    return getattr(import_module(module), attribute)


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
