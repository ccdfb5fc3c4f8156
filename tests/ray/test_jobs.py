"""Sweeps as jobs on a real Ray head: the log, the exit code, stopping, and the same sweep a second time.

Slow, all of them: a head and each of its jobs start several processes. What a submission is, without a head, is tested
in `tests/unit/pipelines/cluster`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError
from mulosd.files.publish import read_json
from mulosd.stage.verify import verify_store
from pipelines.cli.main import cli
from pipelines.cluster.submit import Job, follow, stop, submit
from pipelines.cluster.upload import examine
from tests.ray.job_head import ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
DRIVER = """
import pipelines.cli.main, pipelines.cli.sweeps, pipelines.plan.build
from tests import fakes

pipelines.cli.sweeps.load = lambda sweep, overrides: fakes.toy_sweep()
pipelines.plan.build.load_prompt_set = lambda spec: (fakes.prompts(), "toy-prompts-1")
pipelines.cli.main.main()
"""


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    with ray_head() as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory whose driver is the command line on fakes."""
    path = tmp_path / "work"
    path.mkdir()
    (path / "driver.py").write_text(DRIVER)
    return path


def toy_job(folder: Path, out: str, *options: str) -> Job:
    command = ("python", "driver.py", "run", "toy", "--out", out, "--executor", "ray", "--no-track", *options)
    metadata = {"mulosd.commit": "c0ffee", "mulosd.diff_sha256": "d1ff"}
    return Job(command, folder, "toy", metadata, {"PYTHONPATH": str(ROOT)})


def test_a_sweep_as_a_job_and_the_same_job_again(head: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    said: list[str] = []
    first = submit(toy_job(folder, str(out)), head)
    assert follow(first, head, said.append) == 0, "".join(said)
    assert "30 images, 0 cached, decoded 30, 0 failed" in "".join(said)
    assert "decode: 0 of 30 images, 0 cached, 0 failed\n" in "".join(said)
    assert "decode: 30 of 30 images, 0 cached, 0 failed\n" in "".join(said)
    assert verify_store(out) == []
    cell = next((out / "cells").iterdir())
    record = read_json(cell / "cell.json")["record"]
    assert record["git"] == {"commit": "c0ffee", "diff_sha256": "d1ff"}
    assert record["job"] == first
    assert record["executor"] == "ray"

    again: list[str] = []
    second = submit(toy_job(folder, str(out)), head)
    assert second.rpartition("-")[0] == first.rpartition("-")[0]
    assert follow(second, head, again.append) == 0
    assert "30 cached, decoded 0" in "".join(again)


def test_exit_code_and_relative_paths(head: str, folder: Path) -> None:
    said: list[str] = []
    failing = Job(("python", "-c", "import sys; print('so long'); sys.exit(7)"), folder, "seven")
    assert follow(submit(failing, head), head, said.append) == 7
    assert "so long" in "".join(said)
    refused: list[str] = []
    assert follow(submit(toy_job(folder, "store"), head), head, refused.append) == 2
    assert "--out store is relative" in "".join(refused)


def test_one_driver_at_a_time_and_stop(head: str, folder: Path) -> None:
    waiting = Job(("python", "-c", "import time; print('up', flush=True); time.sleep(600)"), folder, "wait", {"a": "b"})
    submission_id = submit(waiting, head)
    with pytest.raises(ConfigError, match=f"already running as {submission_id}"):
        submit(waiting, head)
    assert stop(submission_id, head) == "STOPPED"
    assert follow(submission_id, head, lambda _: None) == 143
    run = CliRunner().invoke(cli, ["submit", "status", submission_id, "--address", head])
    assert run.exit_code == 0, run.output
    assert f"{submission_id}: STOPPED" in run.output
    assert "a = b" in run.output
    every = CliRunner().invoke(cli, ["submit", "status", "--address", head]).output
    assert submission_id in every
    with pytest.raises(ConfigError, match="Did you mean"):
        stop(submission_id[:-1] + "9", head)


def test_the_real_family_as_a_job(head: str, tmp_path: Path) -> None:
    """Shipped weights: `mulosd submit` of a sweep outside the checkout, then Ray's own command on the same store."""
    assert examine(ROOT).total < 64 * 2**20  # weights included; Ray takes 512 MiB
    sweep, out = str(shutil.copy(ROOT / "sweeps" / "smoke.yaml", tmp_path / "own.yaml")), str(tmp_path / "store")
    done = CliRunner().invoke(cli, ["submit", sweep, "--out", out, "--limit", "1", "--address", head])
    assert done.exit_code == 0, done.output
    assert "run submitted/own.yaml" in done.output
    assert "4 images, 0 cached, decoded 4, 0 failed" in done.output
    assert verify_store(Path(out)) == []
    command = [str(Path(sys.executable).parent / "ray"), "job", "submit", "--address", head, "--working-dir", str(ROOT)]
    command += ["--", "mulosd", "run", "sweeps/smoke.yaml", "--out", out, "--limit", "1", "--executor", "ray"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "4 images, 4 cached, decoded 0, 0 failed; scores: 12 cached, 0 computed" in again.stdout


def test_the_printed_commands_work_after_the_demo(tmp_path: Path) -> None:
    """In a fresh home and in the order of the pages: a sweep on a Ray of its own, as in the demo, then a cluster."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    printed = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    home, store = tmp_path / "home", tmp_path / "store"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}

    def run(command: str, **variables: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env={**env, **variables}, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    mulosd = f"{sys.executable} -m pipelines.cli"
    run(f"{mulosd} run sweeps/smoke.yaml --limit 1 --executor ray --no-track --out {store}")
    assert not (home / ".ray").exists()
    mode, generate, start, submit_line = printed[:4]
    assert (mode, start) == ("export RAY_AUTH_MODE=token", "ray start --head")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "".join(f"    {line}\n" for line in printed[:4]) in readme
    token = {"RAY_AUTH_MODE": "token"}
    run(generate, **token)
    with ray_head(environment=env | token) as address:
        job_line = next(line for line in printed if line.startswith("ray job submit"))
        for line, variables in ((submit_line, token), (job_line, token), (submit_line, {})):
            command = line.replace("/shared/runs/smoke", str(store)).replace("mulosd submit", f"{mulosd} submit")
            command = command.replace("mulosd run", f"{mulosd} run") + " --limit 1"
            said = run(command, RAY_API_SERVER_ADDRESS=address, **variables)
            assert "4 images, 4 cached, decoded 0, 0 failed" in said
