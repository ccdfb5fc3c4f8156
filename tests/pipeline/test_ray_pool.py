"""Which actor gets which job, without Ray; and what --num-gpus says."""

from dataclasses import replace
from pathlib import Path

import pytest

from mulosd.errors import ConfigError
from pipelines.decode import DecodeTask, TargetSpec
from pipelines.executor import parse_num_gpus
from pipelines.plan import build_plan
from pipelines.ray_pool import Actor, Job, Waiting
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


def test_num_gpus() -> None:
    assert parse_num_gpus([]) == {}
    assert parse_num_gpus(["2", "tiny-high=0.5"]) == {"": 2.0, "tiny-high": 0.5}


@pytest.mark.parametrize("text", ["", "two", "=1", "tiny=", "-1", "nan", "a=inf"])
def test_bad_num_gpus(text: str) -> None:
    with pytest.raises(ConfigError, match="give a number for all targets"):
        parse_num_gpus([text])
