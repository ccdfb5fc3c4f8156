"""What a submission is before anything is sent: absolute paths, code state, the upload, and what is refused."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError
from pipelines.cli.job_paths import check_job_paths
from pipelines.cli.main import cli
from pipelines.cluster.submit import (
    ADDRESS,
    ADDRESS_VARIABLES,
    Job,
    connect,
    exit_code,
    resolve_address,
    status_lines,
    sweep_job,
)
from pipelines.cluster.upload import examine, upload_folder
from pipelines.executors.ray_start import MODE, TOKEN, forget_token
from pipelines.host.job_env import JOB_CONFIG
from pipelines.host.provenance import git_state

ROOT = Path(__file__).parents[4]


def option(command: tuple[str, ...], name: str) -> list[str]:
    return [command[i + 1] for i, word in enumerate(command) if word == name]


def test_a_job_says_everything_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MULOSD_WEIGHTS", raising=False)
    uri = "postgresql://me:secret@db/x"
    job = sweep_job("smoke", out=Path("store"), limit=3, tracking_uri=uri, overrides=["base_seed=1"])
    assert option(job.entrypoint, "--out") == [str(tmp_path / "store")]
    assert option(job.entrypoint, "--set") == ["base_seed=1"]
    assert option(job.entrypoint, "--limit") == ["3"]
    assert "sweeps/smoke.yaml" in job.entrypoint
    assert job.working_dir == ROOT
    assert job.env == {"MULOSD_TRACKING_URI": uri}
    assert "secret" not in " ".join([*job.entrypoint, *job.metadata.values()])
    state = git_state()
    assert job.metadata["mulosd.commit"] == (state["commit"] or "")
    assert job.prefix == sweep_job("smoke", out=Path("store"), limit=3, overrides=["base_seed=1"]).prefix
    assert job.prefix != sweep_job("smoke", out=Path("other"), limit=3, overrides=["base_seed=1"]).prefix


def test_a_prompt_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "name: mine\ntarget: tiny-mid\nprompts: {name: dpg, path: texts}\nmethods: [{method: ar}]\n"
    )
    job = sweep_job("mine.yaml", out=Path("store"), working_dir=tmp_path)
    assert option(job.entrypoint, "--set") == [f"prompts.path={tmp_path / 'texts'}"]
    assert job.entrypoint[job.entrypoint.index("run") + 1] == "mine.yaml"
    with pytest.raises(ConfigError, match="four slashes"):
        sweep_job("smoke", out=Path("store"), tracking_uri="sqlite:///x.db")


MINE = "name: mine\ntarget: tiny-mid\nprompts: {name: scenes, split: val, count: 2}\nmethods: [{method: ar}]\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a sweep in it and one beside it; the current folder."""
    folder = tmp_path / "checkout"
    for path in (folder / "sweeps" / "mine.yaml", tmp_path / "own" / "mine.yaml"):
        path.parent.mkdir(parents=True)
        path.write_text(MINE)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


def named(job: Job) -> str:
    return job.entrypoint[job.entrypoint.index("run") + 1]


def test_a_sweep_is_where_its_resolved_path_says(checkout: Path) -> None:
    inside = sweep_job("../checkout/sweeps/mine.yaml", out=Path("../store"), working_dir=checkout)
    assert (named(inside), inside.added) == ("sweeps/mine.yaml", {})
    assert option(inside.entrypoint, "--out") == [str(checkout.parent / "store")]
    outside = sweep_job("../own/mine.yaml", out=Path("store"), working_dir=Path())
    assert (named(outside), outside.working_dir) == ("submitted/mine.yaml", checkout)
    assert outside.added == {"submitted/mine.yaml": checkout.parent / "own" / "mine.yaml"}
    (checkout / "link.yaml").symlink_to(checkout.parent / "own" / "mine.yaml")
    assert sweep_job("link.yaml", out=Path("store"), working_dir=checkout).added == outside.added
    (checkout / "submitted").mkdir()
    (checkout / "submitted" / "mine.yaml").write_text("another one")
    assert named(sweep_job("../own/mine.yaml", out=Path("store"), working_dir=checkout)) == "_submitted/mine.yaml"


@pytest.mark.parametrize("ignore_file", [".gitignore", ".rayignore"])
def test_a_sweep_that_is_ignored_is_sent_all_the_same(checkout: Path, ignore_file: str) -> None:
    (checkout / ignore_file).write_text("*.yaml\nlarge/\n")
    (checkout / "large").mkdir()
    (checkout / "large" / "data.bin").write_bytes(b"x")
    job = sweep_job("sweeps/mine.yaml", out=Path("store"), working_dir=checkout)
    with upload_folder(job.working_dir, job.added) as folder:
        assert examine(folder).names == {"run.sh", "submitted/mine.yaml"}
        assert (folder / named(job)).read_text() == MINE
        assert os.access(folder / "run.sh", os.X_OK)
    assert not folder.exists()
    run = CliRunner().invoke(
        cli, ["submit", "sweeps/mine.yaml", "--out", "store", "--working-dir", ".", "--dry-run", "--address", ADDRESS]
    )
    assert f"and {checkout}/sweeps/mine.yaml as submitted/mine.yaml" in run.output
    with upload_folder(checkout, {}) as same:
        assert same == checkout


def test_the_folder_of_the_weights_is_told_to_a_job(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULOSD_WEIGHTS", "../weights")
    job = sweep_job("smoke", out=Path("store"))
    assert job.env == {"MULOSD_WEIGHTS": str(checkout.parent / "weights")}
    given = sweep_job("smoke", out=Path("store"), env={"MULOSD_WEIGHTS": "/there"})
    assert given.env == {"MULOSD_WEIGHTS": "/there"}


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A token that Ray finds, and no word on whether to use it."""
    monkeypatch.delenv(MODE, raising=False)
    monkeypatch.setenv(TOKEN, "b" * 64)
    forget_token()
    yield "b" * 64
    monkeypatch.undo()
    forget_token()


class Guarded:
    """A job client whose server wants a token."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        from ray.exceptions import AuthenticationError

        self.address, self.headers = address, headers
        if headers is None:
            raise AuthenticationError("Authentication required")


def test_a_server_on_this_machine_is_shown_the_token_that_is_here(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import AuthenticationError

    assert connect(Guarded, "http://127.0.0.1:8265").headers == {"Authorization": f"Bearer {token}"}
    with pytest.raises(AuthenticationError):
        connect(Guarded, "http://elsewhere:8265")  # nobody else is, unless RAY_AUTH_MODE says so
    monkeypatch.setenv(MODE, "disabled")
    with pytest.raises(AuthenticationError):
        connect(Guarded, "http://127.0.0.1:8265")


def test_status_shows_how_far_a_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the store where it is visible here, otherwise from the job's log."""
    here, away = tmp_path / "here", tmp_path / "away"
    (here / "sweeps" / "key").mkdir(parents=True)
    at = {"stage": "decode", "label": "", "done": 4, "total": 9, "cached": 1, "running": 5, "failed": 0, "eta_s": 61.0}
    about = {"state": "running", "job": "sweep-a-1", "updated_at": "2026-12-01T00:00:00+00:00"}
    (here / "sweeps" / "key" / "progress.json").write_text(json.dumps(at | about))

    class Client:
        def __init__(self, address: str) -> None:
            self.jobs = [self.job("sweep-a-1", here), self.job("sweep-b-1", away), self.job("sweep-c-1", away)]

        def job(self, name: str, out: Path) -> SimpleNamespace:
            status = SimpleNamespace(value="RUNNING", is_terminal=lambda: False)
            known = {"message": None, "driver_exit_code": None, "entrypoint": "run", "start_time": 1, "end_time": None}
            return SimpleNamespace(submission_id=name, status=status, metadata={"mulosd.out": str(out)}, **known)

        def list_jobs(self) -> list[SimpleNamespace]:
            return self.jobs

        def get_job_logs(self, name: str) -> str:
            log = "decode: 1 of 9 images\nscore: 2 of 3 chunks, 0 cached\nWARNING later\n"
            return "" if name == "sweep-c-1" else log

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    first, second, third = status_lines(None, ADDRESS)
    assert "sweep-a-1  RUNNING" in first
    assert "decode: 4 of 9 images, 1 cached, 0 failed, about 61 s left (running, 20" in first
    assert second.endswith("score: 2 of 3 chunks, 0 cached")
    assert third.endswith("no progress yet")
    assert "  score: 2 of 3 chunks, 0 cached" in list(status_lines("sweep-b-1", ADDRESS))


def test_the_address_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ADDRESS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert resolve_address(None) == ADDRESS
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:1")
    assert resolve_address(None) == "http://elsewhere:1"
    assert resolve_address("http://here:2/") == "http://here:2"
    with pytest.raises(ConfigError, match="not a job server"):
        resolve_address("head:6379")


def test_the_upload_follows_the_ignore_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"a.py": 10, "big.bin": 5000, "runs/x.bin": 9000, ".venv/y": 9000, "data/z": 9000}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / ".gitignore").write_text("/runs/\n")
    (tmp_path / ".rayignore").write_text("/data/\n")
    upload = examine(tmp_path)
    assert [name for name, _ in upload.files] == ["big.bin", "a.py", ".gitignore", ".rayignore"]
    assert "4 files" in upload.lines()[0]
    monkeypatch.setattr("pipelines.cluster.upload.MAX_BYTES", 100)
    with pytest.raises(ConfigError, match=r"\.rayignore \(the largest: big\.bin"):
        examine(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        examine(tmp_path / "missing")


def test_dry_run_shows_what_would_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli, ["submit", "smoke", "--out", str(tmp_path), "--dry-run", "--address", ADDRESS])
    assert done.exit_code == 0, done.output
    assert "working directory" in done.output
    assert done.output.count(" MiB  ") == 5
    assert f"{ADDRESS}: python -m pipelines.cli run sweeps/smoke.yaml --out {tmp_path}" in done.output
    sent = {name for name, _ in examine(ROOT).files}
    assert "pipelines/cli/main.py" in sent
    assert not any(name.startswith(("tests/", ".git/", "runs/", ".venv/")) for name in sent)
    wrong = CliRunner().invoke(cli, ["submit", "smoke", "--out", str(tmp_path), "--env", "X"])
    assert "NAME=VALUE" in str(wrong.exception)


def test_inside_a_job_paths_are_absolute_and_the_code_state_is_the_submitters(monkeypatch: pytest.MonkeyPatch) -> None:
    check_job_paths(Path("store"), None)
    metadata = {"job_submission_id": "sweep-x-1", "mulosd.commit": "abc", "mulosd.diff_sha256": ""}
    monkeypatch.setitem(os.environ, JOB_CONFIG, json.dumps({"metadata": metadata}))
    with pytest.raises(ConfigError, match="--out store is relative"):
        check_job_paths(Path("store"), None)
    check_job_paths(Path("/store"), None)
    assert git_state() == {"commit": "abc", "diff_sha256": ""}


def test_codes_of_jobs_that_did_not_end_well() -> None:
    class Info:
        def __init__(self, status: str, code: int | None) -> None:
            self.status = type("Status", (), {"value": status})
            self.driver_exit_code = code

    cases = [("SUCCEEDED", 0, 0), ("FAILED", 7, 7), ("FAILED", -9, 137), ("FAILED", None, 1), ("STOPPED", None, 143)]
    for status, code, expected in cases:
        assert exit_code(Info(status, code)) == expected
    assert exit_code(Info("FAILED", 0)) == 1
