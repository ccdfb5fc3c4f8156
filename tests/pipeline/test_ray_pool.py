"""Which actor gets which job, without Ray, and what becomes of lost ones."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import DataError, EnvironmentProblem
from pipelines.executors.ray_executor import MAX_ATTEMPTS, RayExecutor
from pipelines.executors.ray_pool import Actor, Job, Waiting
from pipelines.plan.build import build_plan
from pipelines.work.tasks import DecodeTask, TargetSpec
from tests.fakes import toy_sweep

A, B = (TargetSpec("tests.fakes:load_target", name, "cpu", "float32") for name in ("fake-a", "fake-b"))


def jobs(target: TargetSpec, count: int) -> list[Job]:
    cell = build_plan(toy_sweep()).cells[0]
    task = DecodeTask(cell.key, "toy", target, cell.method, cell.chunks[0], 4, str(Path("c")))
    return [Job(replace(task, label=f"{target.target_id} {i}")) for i in range(count)]


def actor(target: TargetSpec | None = None) -> Actor:
    return Actor(None, 0.0, None, target)


def test_the_target_with_most_work_per_actor_comes_next() -> None:
    waiting = Waiting([*jobs(A, 4), *jobs(B, 6)])
    assert waiting.next_target([], [A, B]) == B
    assert waiting.next_target([actor(B)], [A, B]) == A
    assert waiting.next_target([actor(B), actor(A)], [A, B]) == B
    assert waiting.next_target([], [A]) == A
    assert waiting.next_target([], []) is None
    assert Waiting([*jobs(A, 2), *jobs(B, 2)]).next_target([], [A, B]) == A  # the first of equals


def test_jobs_of_a_lost_worker_come_next_and_alone() -> None:
    waiting = Waiting(jobs(A, 3))
    first = actor(A)
    lost = waiting.take(first, A)
    assert lost is not None
    lost.attempts = 1
    waiting.put_back([lost])
    assert len(waiting) == waiting.count(A) == 3
    second = actor(A)
    second.jobs["ref"] = jobs(A, 1)[0]
    assert second.has_room
    assert waiting.take(second, A) is None
    third = actor(A)
    assert waiting.take(third, A) is lost
    third.jobs["ref"] = lost
    assert not third.has_room


def test_an_actor_has_room_for_two_after_it_has_started() -> None:
    one = Actor(None, 0.0, "first answer")
    assert not one.has_room
    assert one.refs == ["first answer"]
    one.started = None
    for ref in ("a", "b"):
        assert one.has_room
        one.jobs[ref] = jobs(A, 1)[0]
    assert not one.has_room
    assert one.refs == ["a", "b"]


def swaps(num_actors: int, counts: list[int]) -> list[int]:
    """The targets that actors load, in order, where every job takes the same time and the first free actor is next."""
    targets = [replace(A, target_id=f"t{i}") for i in range(len(counts))]
    waiting = Waiting(job for target, count in zip(targets, counts, strict=True) for job in jobs(target, count))
    actors, loaded = [actor() for _ in range(num_actors)], []
    while len(waiting):
        for one in actors:
            if one.target not in waiting.targets:
                one.target = waiting.next_target(actors, targets) or one.target
                loaded += [targets.index(one.target)] if one.target in waiting.targets else []
            if one.target in waiting.targets:
                assert waiting.take(one, one.target) is not None
    return loaded


@pytest.mark.parametrize(
    ("num_actors", "counts", "expected"),
    [
        (1, [3, 9, 5], [1, 2, 0]),  # one device: each target is loaded once
        (3, [12, 4, 4], [0, 1, 2, 0, 0]),  # nobody doubles up while a target has nobody
        (2, [2, 9, 14], [2, 1, 0, 2]),  # and whoever is free at the end helps
        (4, [8], [0] * 4),
    ],
)
def test_weights_are_swapped_rarely(num_actors: int, counts: list[int], expected: list[int]) -> None:
    assert swaps(num_actors, counts) == expected


class Killed:
    """Stands for Ray: errors are Ray's own, kills are counted."""

    def __init__(self) -> None:
        import ray.exceptions

        self.exceptions = ray.exceptions
        self.killed: list[Any] = []

    def kill(self, handle: Any) -> None:
        self.killed.append(handle)


@pytest.fixture
def executor() -> RayExecutor:
    """An executor without a cluster."""
    made = RayExecutor.__new__(RayExecutor)
    made._ray, made._actors, made._failed_starts = Killed(), [], 0
    return made


def task_error(cause: Exception) -> Exception:
    from ray.exceptions import RayTaskError

    return RayTaskError("run", "traceback", cause)


def test_what_went_wrong_decides(executor: RayExecutor) -> None:
    from ray import exceptions as errors

    kinds = {
        "user": [task_error(DataError("the weights are missing"))],
        "bug": [task_error(ValueError("shape")), KeyError("no error of Ray")],
        "memory": [task_error(MemoryError()), errors.OutOfMemoryError("the node ran low on memory")],
        "lost": [
            errors.ActorDiedError(),
            errors.ActorUnavailableError("gone", b"1" * 16),
            errors.WorkerCrashedError(),
            errors.NodeDiedError("n"),
            errors.ObjectLostError("00" * 28, b"", "site"),
        ],
        "environment": [
            errors.RuntimeEnvSetupError("pip failed"),
            errors.TaskUnschedulableError("no such node"),
            errors.ActorUnschedulableError("no such node"),
            errors.OutOfDiskError("disk"),
        ],
    }
    for kind, examples in kinds.items():
        assert {executor._kind(error) for error in examples} == {kind}


def test_a_worker_out_of_memory_gets_half_the_batch_once(executor: RayExecutor, tmp_path: Path) -> None:
    job, other = jobs(A, 2)
    job.task = replace(job.task, path=str(tmp_path / "images" / "c.parquet"))  # type: ignore[type-var]
    waiting = Waiting([])
    one = actor(A)
    one.jobs = {"ref": job, "next": other}
    executor._actors = [one]
    memory = task_error(MemoryError("no memory"))
    assert executor._failed(one, "ref", memory, waiting) is None
    assert executor._actors == []
    second = actor(A)
    halved = waiting.take(second, A)
    assert halved is not None
    assert halved.task.is_halved  # type: ignore[union-attr]
    assert waiting.take(second, A) is other
    assert other.attempts == 0
    second.jobs = {"again": halved}
    executor._actors = [second]
    outcome = executor._failed(second, "again", memory, waiting)
    assert outcome is not None
    assert "out of memory, also with half the batch of 4" in outcome.report.failures[0][1]
    assert len(outcome.report.failures) == 4


def test_the_environment_ends_the_run_with_one_sentence(executor: RayExecutor) -> None:
    from ray.exceptions import OutOfDiskError

    one = actor(A)
    executor._actors = [one]
    with pytest.raises(EnvironmentProblem, match=r"Ray cannot go on \(.*disk.*then run the same command to continue"):
        executor._failed(one, "ref", OutOfDiskError("no disk left"), Waiting([]))
    with pytest.raises(DataError, match="weights"):
        executor._failed(one, "ref", task_error(DataError("the weights are missing")), Waiting([]))


def test_workers_that_never_start_end_the_run(executor: RayExecutor) -> None:
    from ray.exceptions import ActorDiedError

    for _ in range(MAX_ATTEMPTS - 1):
        one = Actor(None, 0.0, "first answer")
        executor._actors = [one]
        assert executor._failed(one, "first answer", ActorDiedError(), Waiting([])) is None
    executor._actors = [Actor(None, 0.0, "first answer")]
    with pytest.raises(EnvironmentProblem, match="Ray cannot start a worker"):
        executor._failed(executor._actors[0], "first answer", ActorDiedError(), Waiting([]))


def test_a_cluster_whose_devices_are_taken_ends_the_run(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.executors.ray_executor.START_S", -1.0)
    executor._last_sign = time.monotonic()
    executor._actors = [actor(A)]
    executor._check_start()  # one works: the others may wait
    executor._actors = [Actor(None, 1.0, "first answer")]
    with pytest.raises(EnvironmentProblem, match="no worker could start"):
        executor._check_start()


@pytest.mark.parametrize(
    ("nodes", "workers", "num_gpus", "expected"),
    [
        ([{"CPU": 2}], None, {}, (2, 1)),
        ([{"CPU": 8}], 2, {}, (2, 4)),
        ([{"CPU": 64}], None, {}, (8, 8)),
        ([{"CPU": 2}] * 4, 1, {}, (1, 2)),  # an actor must fit on one node
        ([{"CPU": 16, "GPU": 4}], None, {"": 1.0}, (4, 4)),
        ([{"CPU": 16, "GPU": 4}], None, {"": 0.5}, (8, 2)),
        ([{"CPU": 16, "GPU": 4}], None, {"": 0.75}, (4, 4)),
        ([{"CPU": 16, "GPU": 4}, {"CPU": 4}], None, {"": 2.0}, (2, 8)),
    ],
)
def test_sizes(
    executor: RayExecutor,
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, float]],
    workers: int | None,
    num_gpus: dict[str, float],
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr(executor, "_nodes", lambda: nodes)
    executor._num_gpus = {"": 0.0, **num_gpus}
    assert executor._sizes(workers) == expected


def test_workers_are_told_where_the_weights_are(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a joined cluster have the environment of its nodes, not that of the driver."""
    executor._threads = 1
    monkeypatch.setenv("MULOSD_WEIGHTS", "weights")
    told = executor._options(1.0)["runtime_env"]["env_vars"]
    assert told["MULOSD_WEIGHTS"] == str(Path("weights").absolute())
    monkeypatch.delenv("MULOSD_WEIGHTS")
    assert "MULOSD_WEIGHTS" not in executor._options(1.0)["runtime_env"]["env_vars"]
