"""The actors that hold weights, and which job each gets next. No Ray import: handles are passed in.

An actor keeps its target while there is work for it. Then it takes one that no actor works on, the largest first, and
helps with the largest share only when there is none: weights are swapped rarely and yet no actor idles. An actor gets
jobs only after it has answered once: an actor that waits for a device does not block the others.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipelines.work.tasks import ScoreTask, TargetSpec, Task

IN_FLIGHT = 2  # tasks per actor: one runs, one waits, so that no actor idles


@dataclass
class Job:
    """A task and how often a worker was lost on it."""

    task: Task
    attempts: int = 0


@dataclass
class Actor:
    """One actor: what it was given, what it has loaded last, and what it holds."""

    handle: Any
    num_gpus: float
    started: Any  # the reference of its first answer; None once it has answered
    target: TargetSpec | None = None
    jobs: dict[Any, Job] = field(default_factory=dict)  # object reference -> job

    @property
    def refs(self) -> list[Any]:
        """What to wait for."""
        return [*self.jobs] if self.started is None else [self.started]

    @property
    def has_room(self) -> bool:
        """Whether it may get a job. One that lost a worker before runs by itself, to take no other down with it."""
        is_alone = any(job.attempts for job in self.jobs.values())
        return self.started is None and not is_alone and len(self.jobs) < IN_FLIGHT


class Waiting:
    """Jobs that wait, by target."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._queues: dict[TargetSpec, deque[Job]] = {}
        for job in jobs:
            self._queue(job).append(job)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def targets(self) -> list[TargetSpec]:
        """Targets with waiting jobs, in the order of the plan."""
        return [target for target, queue in self._queues.items() if queue]

    def count(self, target: TargetSpec) -> int:
        """Waiting jobs of a target."""
        return len(self._queues[target])

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Jobs of a lost worker: they come next."""
        for job in reversed(list(jobs)):
            self._queue(job).appendleft(job)

    def next_target(self, actors: Iterable[Actor], allowed: Iterable[TargetSpec]) -> TargetSpec | None:
        """The allowed target that no actor works on, then the one with the most waiting jobs per actor, for an actor
        that had another one before; the first of equals."""
        busy = Counter(actor.target for actor in actors)
        candidates = [target for target in self.targets if target in set(allowed)]
        return max(candidates, key=lambda t: (t not in busy, self.count(t) / (1 + busy[t])), default=None)

    def take(self, actor: Actor, target: TargetSpec) -> Job | None:
        """The next job of `target` for this actor; None when it must wait for the actor to be idle."""
        queue = self._queues[target]
        if actor.jobs and queue[0].attempts:
            return None
        return queue.popleft()

    def _queue(self, job: Job) -> deque[Job]:
        assert not isinstance(job.task, ScoreTask)
        return self._queues.setdefault(job.task.target, deque())
