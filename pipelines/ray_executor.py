"""The Ray executor: one actor per device that holds the weights, a bounded window of tasks in flight.

Actor calls run at most once and publishing is idempotent, so a task whose actor died is simply given to
another one (workflow.md b.3). A cluster named by RAY_ADDRESS is joined; otherwise a local one is started.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mulosd.errors import EnvironmentProblem, UserError
from pipelines.decode import DecodeTask, fail_chunk
from pipelines.executor import Outcome, Report, Task, Worker

log = logging.getLogger(__name__)

IN_FLIGHT = 2  # tasks per actor: one runs, one waits, so that no actor idles
MAX_ATTEMPTS = 3  # a chunk that kills its worker this often is recorded as failed
MAX_CPU_WORKERS = 8  # each holds the weights


@dataclass
class _Job:
    task: Task
    attempts: int = 0


@dataclass
class _Actor:
    handle: Any
    jobs: dict[Any, _Job] = field(default_factory=dict)  # object reference -> job

    def can_take(self, job: _Job) -> bool:
        """A job that was on a dead actor runs alone, so that it takes no other down with it."""
        if not self.jobs:
            return True
        is_fresh = job.attempts == 0 and all(other.attempts == 0 for other in self.jobs.values())
        return is_fresh and len(self.jobs) < IN_FLIGHT


class RayExecutor:
    """Runs tasks on Ray actors; device "cuda" takes one GPU per actor, "cpu" an equal share of the cores."""

    def __init__(self, *, device: str = "cpu", workers: int | None = None) -> None:
        import ray

        self._ray = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            _start(ray)
        resources = ray.cluster_resources()
        cores = max(1, int(resources.get("CPU", 1)))
        gpus = int(resources.get("GPU", 0))
        if device == "cuda" and gpus < 1:
            self.close()
            raise EnvironmentProblem("the Ray cluster has no GPU; set device: cpu in the sweep or join a GPU cluster.")
        most = gpus if device == "cuda" else min(cores, MAX_CPU_WORKERS)
        self._workers = most if workers is None else min(workers, most)
        self._threads = max(1, cores // self._workers)
        self._num_gpus = 1 if device == "cuda" else 0
        self._actors: list[_Actor] = []

    def map(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in completion order; at most two tasks per actor are in flight."""
        source = iter(tasks)
        queue: deque[_Job] = deque()
        try:
            while True:
                self._fill(queue, source)
                running = [ref for actor in self._actors for ref in actor.jobs]
                if not running:
                    return
                ready, _ = self._ray.wait(running, num_returns=1)
                outcome = self._collect(ready[0], queue)
                if outcome is not None:
                    yield outcome
        finally:
            self._drop_busy()

    def close(self) -> None:
        """End the actors, and the cluster when this executor started it."""
        for actor in getattr(self, "_actors", []):
            self._ray.kill(actor.handle)
        self._actors = []
        if self._owns_cluster:
            self._ray.shutdown()

    def describe(self) -> dict[str, Any]:
        """Kind, workers and threads."""
        return {"executor": "ray", "workers": self._workers, "threads": self._threads}

    def _fill(self, queue: deque[_Job], source: Iterator[Task]) -> None:
        """Hand out jobs until every actor is full or none is left; actors start when there is work for them."""
        while True:
            if not queue:
                task = next(source, None)
                if task is None:
                    return
                queue.append(_Job(task))
            actor = self._free_actor(queue[0])
            if actor is None:
                return
            job = queue.popleft()
            actor.jobs[actor.handle.run.remote(job.task)] = job

    def _free_actor(self, job: _Job) -> _Actor | None:
        idle = [actor for actor in self._actors if not actor.jobs]
        if not idle and len(self._actors) < self._workers:
            idle = [_Actor(self._new_handle())]
            self._actors += idle
        candidates = [*idle, *self._actors]
        return next((actor for actor in candidates if actor.can_take(job)), None)

    def _new_handle(self) -> Any:
        # Read by torch when the actor's process imports it, which is after this.
        env = {"OMP_NUM_THREADS": str(self._threads), "OMP_WAIT_POLICY": "passive"}
        if not self._num_gpus:
            env["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves the GPUs visible to a worker that asked for none
        remote = self._ray.remote(
            num_cpus=self._threads,
            num_gpus=self._num_gpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": env},
        )(Worker)
        return remote.remote()

    def _collect(self, ref: Any, queue: deque[_Job]) -> Outcome | None:
        """The outcome of a finished job; None when its actor died and its jobs went back to the queue."""
        errors = self._ray.exceptions
        actor = next(actor for actor in self._actors if ref in actor.jobs)
        try:
            report: Report = self._ray.get(ref)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise
        except (errors.RuntimeEnvSetupError, errors.TaskUnschedulableError, errors.ActorUnschedulableError) as error:
            reason = str(error).splitlines()[0]
            raise EnvironmentProblem(f"Ray cannot start a worker ({reason}); check the cluster's setup.") from error
        except (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError) as error:
            return self._requeue(actor, ref, queue, error)
        return Outcome(actor.jobs.pop(ref).task, report)

    def _requeue(self, actor: _Actor, ref: Any, queue: deque[_Job], error: Exception) -> Outcome | None:
        """Replace a dead actor: its jobs go back to the queue, and one that died too often is recorded as failed."""
        self._actors.remove(actor)
        jobs = list(actor.jobs.values())
        for job in jobs:
            job.attempts += 1
        spent = next((job for job in jobs if job.attempts >= MAX_ATTEMPTS), None)
        queue.extendleft(job for job in reversed(jobs) if job is not spent)
        reason = str(error).strip().splitlines()[0]
        log.warning("a worker died (%s); %d task(s) go back to the queue", reason, len(jobs) - (spent is not None))
        if spent is None:
            return None
        text = f"the worker died {MAX_ATTEMPTS} times on {spent.task.name} ({reason})"
        if isinstance(spent.task, DecodeTask):
            return Outcome(spent.task, fail_chunk(spent.task, text))
        raise EnvironmentProblem(f"{text}; look for its cause (memory is the usual one) in Ray's logs.")

    def _drop_busy(self) -> None:
        """End actors whose results nobody waits for any more."""
        for actor in [actor for actor in self._actors if actor.jobs]:
            self._ray.kill(actor.handle)
            self._actors.remove(actor)


def _start(ray: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start a local one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)  # bare otherwise: a job's own runtime environment must stay in force
    else:
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
