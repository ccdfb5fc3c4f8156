"""Kills at seeded random points: workers, the driver, the head. The rows are those of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mulosd.stage.verify import verify_store
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.results import collect
from tests import fakes
from tests.fakes import toy_sweep

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
SLOW = {fakes.SLEEP_S: "0.3"}
PATIENCE_S = 600  # a busy machine is no fault: only a driver that hangs may fail a test
HEAD = """
import ray, time
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
time.sleep(600)
"""


def content(store: Path) -> dict[str, Any]:
    """Everything a sweep is about: chunk files byte by byte, and its table."""
    files = {str(path.relative_to(store)): path.read_bytes() for path in store.glob("cells/*/images/*.parquet")}
    return {"files": files, "table": collect(store)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))
        run_sweep(toy_sweep(), out=store)
        return content(store)


@pytest.fixture
def address(cluster: Path) -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def start(out: Path, *args: Any, **env: str) -> "subprocess.Popen[str]":
    """A driver process on the cluster at RAY_ADDRESS."""
    command = [sys.executable, "-m", "tests.ray.drive", str(out), *map(str, args)]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_done(process: "subprocess.Popen[str]", images: int) -> None:
    """Until the driver has told of so many images."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("done") and int(line.split()[1]) >= images:
            return
    _, errors = process.communicate()
    pytest.fail(f"the driver ended early: {errors}")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_kills_at_random_points_change_nothing(
    tmp_path: Path, cluster: Path, address: str, steer: Callable[..., None], undisturbed: dict[str, Any], seed: int
) -> None:
    rng = random.Random(seed)
    deaths = [f"prompt {i}" for i in rng.sample(range(10), 3)]  # each ends one worker, whichever cell it works on
    kill_at = rng.choice([-1, 1]) * rng.randint(2, 7)  # before (-) or after (+) a chunk is recorded
    steer(fakes.DIE_FILE, *deaths[:2])
    driver = start(tmp_path, "ray", kill_at, RAY_ADDRESS=address)
    _, errors = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == -signal.SIGKILL, errors
    with (cluster / fakes.DIE_FILE).open("a") as file:
        file.write(f"\n{deaths[2]}")
    report = run_sweep(toy_sweep(), out=tmp_path, executor="ray")
    assert report.failed == 0
    assert report.cached >= 1
    assert content(tmp_path) == undisturbed
    assert verify_store(tmp_path) == []
    assert run_sweep(toy_sweep(), out=tmp_path, executor="ray").decoded == 0


@pytest.mark.slow
def test_a_job_that_is_stopped_can_be_continued(tmp_path: Path, address: str, undisturbed: dict[str, Any]) -> None:
    begun = time.monotonic()
    driver = start(tmp_path, "ray", RAY_ADDRESS=address, **SLOW)
    wait_for_done(driver, 4)
    stopped = time.monotonic()
    driver.terminate()
    _, errors = driver.communicate(timeout=PATIENCE_S)
    took = time.monotonic() - stopped
    assert driver.returncode == 128 + signal.SIGTERM, errors
    assert "the same command continues" in errors
    # Three seconds are given. A busy machine stretches them as it stretches the start, which takes longer when idle.
    assert took < max(3.0, stopped - begun), took
    progress = tmp_path / "sweeps" / build_plan(toy_sweep()).sweep_key / "progress.json"
    assert json.loads(progress.read_text())["state"] == "stopped"
    assert run_sweep(toy_sweep(), out=tmp_path, executor="ray").cached >= 4
    assert content(tmp_path) == undisturbed


@pytest.fixture
def head() -> Iterator["subprocess.Popen[str]"]:
    """A head of its own, with its process group."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_head_is_killed(tmp_path: Path, head: "subprocess.Popen[str]", undisturbed: dict[str, Any]) -> None:
    assert head.stdout is not None
    # Ray's own default is to look for a lost head for a minute.
    patience = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    driver = start(tmp_path, "ray", RAY_ADDRESS=head.stdout.readline().strip(), **SLOW, **patience)
    wait_for_done(driver, 4)
    os.killpg(head.pid, signal.SIGKILL)
    driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode != 0
    assert run_sweep(toy_sweep(), out=tmp_path, executor="ray").cached >= 4
    assert content(tmp_path) == undisturbed
    assert verify_store(tmp_path) == []
