"""The Ray executor: actors that hold weights encode and decode, tasks score, with a bounded window of both in flight.

Actor calls run at most once and publishing is idempotent, so what was on a lost worker is simply given to another one
(docs/operations.md "Faults"). What went wrong decides what happens:

    a bug in a sample                 a failed row, inside its chunk; any other bug ends the run with its traceback
    out of memory                     once more with half the batch, then failed rows
    worker, node or object lost       back to the queue, a new worker; after MAX_ATTEMPTS failed rows
    the environment                   the run ends with one sentence

Which Ray it runs on is a matter of `ray_start`.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

from mulosd.errors import EnvironmentProblem, UserError, first_line
from mulosd.families.card import WEIGHTS
from pipelines.executors.ray_pool import IN_FLIGHT, Actor, Job, Waiting
from pipelines.executors.ray_start import ray_running
from pipelines.plan.gpu_requests import DEFAULT
from pipelines.work.decode import is_out_of_memory
from pipelines.work.tasks import Outcome, ScoreTask, TargetSpec, Task
from pipelines.work.worker import Worker, fail_task, run_in_worker

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3  # a chunk that loses its worker this often is recorded as failed
MAX_CPU_WORKERS = 8  # each holds the weights
START_S = 300.0  # how long all actors together may take to answer for the first time
POLL_S = 5.0


class RayExecutor:
    """Runs tasks on Ray; device "cuda" takes one GPU per actor, "cpu" an equal share of the cores.

    num_gpus: GPUs per actor of a target, by target id (see `resources`). Parts of a GPU are allowed, since
    no cell is timed. workers: at most so many actors.
    """

    def __init__(
        self, *, device: str = "cpu", workers: int | None = None, num_gpus: Mapping[str, float] | None = None
    ) -> None:
        import ray

        self._ray = ray
        self._actors: list[Actor] = []
        self._failed_starts = 0
        self._last_sign = time.monotonic()  # when a worker last answered
        self._num_gpus = {DEFAULT: 1.0 if device == "cuda" else 0.0, **(num_gpus or {})}
        self._cluster = ExitStack()
        self._cluster.enter_context(ray_running(ray))
        try:
            self._workers, self._threads = self._sizes(workers)
        except BaseException:
            self.close()
            raise

    def map(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in completion order. Scoring comes after decoding: then the actors' devices are free again."""
        jobs = [Job(task) for task in tasks]
        decode = [job for job in jobs if job.task.needs_target]
        score = [job for job in jobs if not job.task.needs_target]
        try:
            if decode:
                yield from self._decode(Waiting(decode))
            if score:
                self._end_actors(self._actors)
                yield from self._score(deque(score))
        finally:
            self._end_actors([actor for actor in self._actors if actor.jobs])

    def close(self) -> None:
        """End the actors, and the cluster when this executor started it."""
        if self._ray.is_initialized():
            self._end_actors(self._actors)
        self._cluster.close()

    def describe(self) -> dict[str, Any]:
        """Kind, workers and threads."""
        return {"executor": "ray", "workers": self._workers, "threads": self._threads}

    # Decoding: actors.

    def _decode(self, waiting: Waiting) -> Iterator[Outcome]:
        while True:
            self._hand_out(waiting)
            if not len(waiting) and not any(actor.jobs for actor in self._actors):
                return
            ready = self._wait([ref for actor in self._actors for ref in actor.refs])
            if not ready:
                self._check_start()
                continue
            actor = next(actor for actor in self._actors if ready[0] in actor.refs)
            outcome = self._collect(actor, ready[0], waiting)
            if outcome is not None:
                yield outcome

    def _hand_out(self, waiting: Waiting) -> None:
        """Give jobs to actors with room, idle ones first, and start actors while there is work and room for them."""
        self._start_actors(waiting)
        for level in range(IN_FLIGHT):
            for actor in [a for a in self._actors if a.has_room and len(a.jobs) <= level]:
                allowed = [t for t in waiting.targets if self._gpus_of(t) == actor.num_gpus]
                target = actor.target if actor.target in allowed else waiting.next_target(self._actors, allowed)
                if target is None or (actor.jobs and target != actor.target):
                    continue  # a swap of weights begins when the actor is idle: another one may be free by then
                job = waiting.take(actor, target)
                if job is not None:
                    actor.target = target
                    actor.jobs[actor.handle.run.remote(job.task)] = job

    def _start_actors(self, waiting: Waiting) -> None:
        for num_gpus in dict.fromkeys(map(self._gpus_of, waiting.targets)):
            mine = [actor for actor in self._actors if actor.num_gpus == num_gpus]
            if not mine:
                self._make_room(waiting, num_gpus)
            jobs = sum(waiting.count(target) for target in waiting.targets if self._gpus_of(target) == num_gpus)
            missing = jobs - sum(not actor.jobs for actor in mine)  # idle ones and those that start
            while missing > 0 and len(self._actors) < self._workers and self._is_free(num_gpus):
                handle = self._new_handle(num_gpus)
                self._actors.append(Actor(handle, num_gpus, handle.describe.remote()))
                missing -= 1

    def _make_room(self, waiting: Waiting, num_gpus: float) -> None:
        """End an idle actor that no waiting job fits, when there is no room for one of another size."""
        wanted = {self._gpus_of(target) for target in waiting.targets}
        while len(self._actors) >= self._workers or not self._is_free(num_gpus):
            idle = [a for a in self._actors if a.started is None and not a.jobs and a.num_gpus not in wanted]
            if not idle:
                return
            self._end_actors(idle[:1])

    def _is_free(self, num_gpus: float) -> bool:
        if num_gpus == 0:
            return True
        nodes = self._nodes()
        used = sum(actor.num_gpus for actor in self._actors)
        if used + num_gpus > sum(node.get("GPU", 0) for node in nodes):
            return False
        return sum(a.num_gpus == num_gpus for a in self._actors) < sum(_fits(node, num_gpus) for node in nodes)

    def _new_handle(self, num_gpus: float) -> Any:
        options = self._options(num_gpus)
        return self._ray.remote(max_restarts=0, max_task_retries=0, **options)(Worker).remote()

    def _collect(self, actor: Actor, ref: Any, waiting: Waiting) -> Outcome | None:
        """The outcome of a finished job; None when there is none (yet): an actor has started or was lost."""
        try:
            value = self._ray.get(ref)
        except Exception as error:
            return self._failed(actor, ref, error, waiting)
        self._last_sign = time.monotonic()
        if actor.started is not None:
            actor.started = None
            self._failed_starts = 0
            log.info("a worker started: %s", value)
            return None
        return Outcome(actor.jobs.pop(ref).task, value)

    def _failed(self, actor: Actor, ref: Any, error: Exception, waiting: Waiting) -> Outcome | None:
        kind = self._kind(error)
        if kind == "lost":
            return self._lost(actor, error, waiting)
        if kind == "memory" and ref in actor.jobs:
            return self._out_of_memory(actor, ref, error, waiting)
        _stop(error, kind)

    def _lost(self, actor: Actor, error: Exception, waiting: Waiting) -> Outcome | None:
        """Put the jobs of a lost actor back; the one that lost MAX_ATTEMPTS workers becomes failed rows."""
        self._end_actors([actor])
        reason = first_line(error)
        jobs = list(actor.jobs.values())
        if not jobs:
            self._failed_starts += 1
            if self._failed_starts >= MAX_ATTEMPTS:
                raise EnvironmentProblem(f"Ray cannot start a worker ({reason}); check the cluster's setup.") from error
        for job in jobs:
            job.attempts += 1
        spent = next((job for job in jobs if job.attempts >= MAX_ATTEMPTS), None)
        waiting.put_back(job for job in jobs if job is not spent)
        log.warning("a worker was lost (%s); %d task(s) go back to the queue", reason, len(jobs) - (spent is not None))
        if spent is None:
            return None
        text = f"the worker died {MAX_ATTEMPTS} times on {spent.task.name} ({reason})"
        report = fail_task(spent.task, text)
        if report is None:
            raise EnvironmentProblem(f"{text}; memory is the usual cause: lower batch_size.") from error
        return Outcome(spent.task, report)

    def _out_of_memory(self, actor: Actor, ref: Any, error: Exception, waiting: Waiting) -> Outcome | None:
        """The job again on a new actor with half the batch; its second time becomes failed rows."""
        job = actor.jobs.pop(ref)
        task = job.task
        assert not isinstance(task, ScoreTask)
        others = list(actor.jobs.values())
        self._end_actors([actor])
        waiting.put_back(others)
        if not task.is_halved:
            log.warning("%s: out of memory (%s); once more with half the batch", task.name, first_line(error))
            waiting.put_back([Job(replace(task, is_halved=True), attempts=1)])
            return None
        text = f"out of memory, also with half the batch of {task.batch_size} ({first_line(error)})"
        report = fail_task(task, text)
        if report is None:
            raise EnvironmentProblem(f"{task.name}: {text}; lower batch_size or use a larger device.") from error
        return Outcome(task, report)

    def _check_start(self) -> None:
        """Stop when there has been no worker at all for long: none can start."""
        is_any_running = any(actor.started is None for actor in self._actors)
        if not is_any_running and time.monotonic() - self._last_sign > START_S:
            raise EnvironmentProblem(
                f"no worker could start within {START_S:.0f} s; other jobs hold the cluster's devices or a node is "
                "gone: wait for them, or ask for less with --workers or --num-gpus."
            )

    def _end_actors(self, actors: Iterable[Actor]) -> None:
        """End actors, so that devices, memory and half-done work of lost ones are let go."""
        for actor in list(actors):
            self._ray.kill(actor.handle)
            self._actors.remove(actor)

    # Scoring: tasks without a GPU.

    def _score(self, queue: deque[Job]) -> Iterator[Outcome]:
        remote = self._ray.remote(max_retries=0, **self._options(0.0))(run_in_worker)
        flying: dict[Any, Job] = {}
        try:
            while queue or flying:
                while queue and len(flying) < IN_FLIGHT * self._workers:
                    job = queue.popleft()
                    flying[remote.remote(job.task)] = job
                ready = self._wait(list(flying))
                if not ready:
                    continue
                job = flying.pop(ready[0])
                try:
                    report = self._ray.get(ready[0])
                except Exception as error:
                    self._score_again(job, error, queue)
                else:
                    yield Outcome(job.task, report)
        finally:
            for ref in flying:
                self._ray.cancel(ref, force=True)

    def _score_again(self, job: Job, error: Exception, queue: deque[Job]) -> None:
        kind = self._kind(error)
        job.attempts += 1
        if kind not in ("lost", "memory"):
            _stop(error, kind)
        if job.attempts >= MAX_ATTEMPTS:
            raise EnvironmentProblem(
                f"the worker died {MAX_ATTEMPTS} times on {job.task.name} ({first_line(error)}); look for its cause "
                "(memory is the usual one) in Ray's logs."
            ) from error
        log.warning("%s: its worker was lost (%s); once more", job.task.name, first_line(error))
        queue.appendleft(job)

    # What the cluster has and says.

    def _wait(self, refs: list[Any]) -> list[Any]:
        """The next finished reference, [] when none is after a while."""
        if not refs:
            time.sleep(POLL_S)
            return []
        try:
            ready: list[Any] = self._ray.wait(refs, num_returns=1, timeout=POLL_S)[0]
        except self._ray.exceptions.RayError as error:
            _stop(error, "environment")
        return ready

    def _kind(self, error: Exception) -> str:
        """user, bug, memory, lost or environment."""
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError):
            cause = error.cause
            if isinstance(cause, UserError):
                return "user"
            return "memory" if is_out_of_memory(cause) else "bug"
        if isinstance(error, errors.OutOfMemoryError):
            return "memory"
        lost = (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError)
        if isinstance(error, lost):
            return "lost"
        return "environment" if isinstance(error, errors.RayError) else "bug"

    def _gpus_of(self, target: TargetSpec) -> float:
        return self._num_gpus.get(target.target_id, self._num_gpus[DEFAULT])

    def _options(self, num_gpus: float) -> dict[str, Any]:
        # Read by torch when the worker's process imports it, which is after this.
        env = {"OMP_NUM_THREADS": str(self._threads), "OMP_WAIT_POLICY": "passive"}
        if weights := os.environ.get(WEIGHTS):  # a cluster's processes have its environment, not the driver's
            env[WEIGHTS] = os.path.abspath(weights)
        if not num_gpus:
            env["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves the GPUs visible to a worker that asked for none
        return {"num_cpus": self._threads, "num_gpus": num_gpus, "runtime_env": {"env_vars": env}}

    def _nodes(self) -> list[dict[str, float]]:
        nodes: Any = self._ray.nodes  # not annotated by Ray
        return [node["Resources"] for node in nodes() if node["Alive"]]

    def _sizes(self, workers: int | None) -> tuple[int, int]:
        """Most actors at once and threads of each: the cores are shared, and an actor fits on every node it may get."""
        nodes = self._nodes()
        least = min(self._num_gpus.values())
        for target, number in self._num_gpus.items():
            if number and not any(_fits(node, number) for node in nodes):
                name = f"{target} asks for" if target else "the sweep asks for"
                have = max((node.get("GPU", 0) for node in nodes), default=0)
                raise EnvironmentProblem(
                    f"the Ray cluster has no GPU for this: {name} {number:g} on one node and the largest has {have:g}; "
                    "set device: cpu in the sweep, lower --num-gpus or join a GPU cluster."
                )
        cores = max(1, int(sum(node.get("CPU", 0) for node in nodes)))
        most = sum(_fits(node, least) for node in nodes) if least else min(cores, MAX_CPU_WORKERS)
        most = max(1, most if workers is None else min(workers, most))
        usable = [node for node in nodes if _fits(node, least)]
        shares = [int(node.get("CPU", 1)) // min(most, _fits(node, least)) for node in usable]
        return most, max(1, min([cores // most, *shares]))


def _fits(node: Mapping[str, float], num_gpus: float) -> int:
    """How many actors of this size a node holds; without GPUs one per core."""
    if num_gpus == 0:
        return int(node.get("CPU", 0))
    gpus = int(node.get("GPU", 0))
    return int(gpus // num_gpus) if num_gpus >= 1 else gpus * int(1 / num_gpus)


def _stop(error: Exception, kind: str) -> NoReturn:
    """Raise what ends the run for an error of this kind: a UserError reads the same as in this process."""
    if kind == "user":
        raise error.cause from None  # type: ignore[attr-defined]
    if kind == "environment":
        raise EnvironmentProblem(
            f"Ray cannot go on ({first_line(error)}); check the cluster, then run the same command to continue."
        ) from error
    raise error
