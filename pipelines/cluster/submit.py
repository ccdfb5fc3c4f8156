"""Sweeps as Ray jobs: `mulosd submit` around Ray's job client.

    submit(job, address)   upload the working directory and start the driver, return the submission id
    follow(id, address)    print its log, wait for its end however the log ends, return the driver's exit code

The driver is `mulosd run` with absolute paths. Ray does not retry a job: submit again, and the run continues.
"""

import asyncio
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from mulosd.errors import ConfigError, EnvironmentProblem, first_line, unknown_name
from mulosd.families.card import WEIGHTS
from mulosd.methods import declared_knobs
from pipelines.cluster.upload import examine, free_name, upload_folder
from pipelines.executors.ray_start import MODE, WANTS_TOKEN
from pipelines.host.job_env import COMMIT, DIFF
from pipelines.host.provenance import git_state
from pipelines.plan.cells import key_of
from pipelines.plan.shipped import ROOT, find_sweep
from pipelines.plan.sweep import Sweep, parse_sweep, read_raw
from pipelines.run.progress import UNITS
from pipelines.run.progress_file import read_progress
from pipelines.tracking.tracking_uri import check_uri, default_uri, public_uri

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

T = TypeVar("T")

ADDRESS = "http://127.0.0.1:8265"  # Ray's job server on this machine
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
PROGRAM = ("python", "-m", "pipelines.cli")  # from the working directory, so that the code that was sent runs
POLL_S = 1.0
STOP_S = 60.0
PATIENCE_S = 60.0
NO_AGENT = "No available agent"  # the words of Ray's job server
LOOPBACK = ("127.0.0.1", "::1", "localhost")
STOPPED_CODE = 143  # as a shell reports SIGTERM


@dataclass(frozen=True)
class Job:
    """A driver to start: its command, the folder to send, what to note about it, and environment variables.

    added: name in the upload -> file that the folder lacks or that Ray would leave out.
    """

    entrypoint: tuple[str, ...]
    working_dir: Path
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    driver_cpus: float = 0
    added: Mapping[str, Path] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What the ids of this job's submissions begin with: the same for the same command."""
        return f"sweep-{self.name}-{key_of(list(self.entrypoint))[:8]}"


def sweep_job(
    sweep: str,
    *,
    out: Path,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    workers: int | None = None,
    tracking_uri: str | None = None,
    working_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    driver_cpus: float = 0,
) -> Job:
    """The job of a sweep, checked here as far as it can be: everything that a path says is absolute.

    working_dir: by default the checkout that this code runs from, or else the folder of the sweep file. A sweep that is
    not among what Ray sends of it is added to the upload. ConfigError for what is wrong.
    """
    path = find_sweep(sweep).resolve()
    raw = read_raw(path, overrides)
    loaded = parse_sweep(raw, where=str(path))
    is_checkout = (ROOT / "pyproject.toml").is_file()
    folder = (working_dir or (ROOT if is_checkout else path.parent)).resolve()
    store = _absolute(out)
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""
    sent = examine(folder).names
    added = {} if name in sent else {free_name(f"submitted/{path.name}", sent): path}
    command = [*PROGRAM, "run", *(added or (name,)), "--out", store, "--executor", "ray"]
    for override in overrides:
        command += ["--set", override]
    file = loaded.prompts.get("path")
    if isinstance(file, str) and not Path(file).is_absolute():
        command += ["--set", f"prompts.path={_absolute(file)}"]
    for key, name in _named_files(raw["methods"], "methods", _file_knobs(loaded)):
        if not Path(name).is_absolute():
            if not Path(name).is_file():
                raise ConfigError(
                    f"{path}: {key} = {name} is relative, and there is no such file here; give the absolute path that "
                    "the cluster has it under."
                )
            command += ["--set", f"{key}={_absolute(name)}"]
    if limit is not None:
        command += ["--limit", str(limit)]
    if workers is not None:
        command += ["--workers", str(workers)]
    weights = {WEIGHTS: _absolute(os.environ[WEIGHTS])} if os.environ.get(WEIGHTS) else {}
    variables = {**weights, **(env or {})}
    if tracking_uri is not None:
        # Not an argument: it may hold a password, and arguments are shown on the dashboard.
        variables["MULOSD_TRACKING_URI"] = check_uri(tracking_uri)
    git = git_state()
    metadata = {
        "mulosd.sweep": loaded.name,
        "mulosd.out": store,
        "mulosd.tracking_uri": public_uri(tracking_uri or default_uri(Path(store))),
        COMMIT: git["commit"] or "",
        **({DIFF: git["diff_sha256"]} if git["diff_sha256"] is not None else {}),
    }
    label = re.sub(r"[^A-Za-z0-9_.]+", "_", loaded.name)
    return Job(tuple(command), folder, label, metadata, variables, driver_cpus, added)


def resolve_address(address: str | None) -> str:
    """The job server to talk to: --address, else the environment, else this machine; ConfigError for another scheme."""
    found = address or next((os.environ[name] for name in ADDRESS_VARIABLES if os.environ.get(name)), ADDRESS)
    if not re.match(r"https?://[^/]+", found):
        raise ConfigError(f"the address {found} is not a job server; give its URL with --address, such as {ADDRESS}.")
    return found.rstrip("/")


def submit(job: Job, address: str) -> str:
    """Send the working directory and start the driver; returns the submission id.

    ConfigError where the same command is still running: two drivers would only wait for each other.
    """
    with _client(address) as client:
        earlier = [found for found in _ask(client.list_jobs) if str(found.submission_id).startswith(f"{job.prefix}-")]
        running = [found.submission_id for found in earlier if not found.status.is_terminal()]
        if running:
            raise ConfigError(
                f"this sweep is already running as {running[0]}; see `mulosd submit status {running[0]}` "
                f"or end it with `mulosd submit stop {running[0]}`."
            )
        submission_id = f"{job.prefix}-{len(earlier) + 1}"
        with upload_folder(job.working_dir, job.added) as folder:
            environment: dict[str, Any] = {"working_dir": str(folder)}
            if job.env:
                environment["env_vars"] = dict(job.env)
            _start(
                client,
                entrypoint=shlex.join(job.entrypoint),
                submission_id=submission_id,
                runtime_env=environment,
                metadata=dict(job.metadata),
                entrypoint_num_cpus=job.driver_cpus or None,
            )
        return submission_id


def follow(submission_id: str, address: str, echo: Callable[[str], None]) -> int:
    """Print the log of a job until the job itself has ended; returns its exit code.

    A log stream may end early: it is taken up again where it broke off, and the status decides.
    """
    shown = 0
    with _client(address) as client:
        while True:
            is_over = _ask(client.get_job_status, submission_id).is_terminal()
            try:
                shown += asyncio.run(_tail(client, submission_id, shown, echo))
            except (RuntimeError, OSError) as error:
                echo(f"[the log stream was interrupted ({first_line(error)}); waiting for the job]\n")
            if is_over:  # asked before the log was read, so all of it has been shown
                return exit_code(_ask(client.get_job_info, submission_id))
            time.sleep(POLL_S)


def stop(submission_id: str, address: str) -> str:
    """Ask a job to end and wait until it has; returns its status."""
    with _client(address) as client:
        _known(client, submission_id)
        _ask(client.stop_job, submission_id)
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            status = _ask(client.get_job_status, submission_id)
            if status.is_terminal():
                return str(status.value)
            time.sleep(POLL_S / 2)
    raise EnvironmentProblem(f"{submission_id} did not end within {STOP_S:.0f} s; ask again or look at its log.")


def status_lines(submission_id: str | None, address: str) -> Iterator[str]:
    """One job in full, or one line for each sweep that was submitted."""
    with _client(address) as client:
        if submission_id is None:
            for found in sorted(_ask(client.list_jobs), key=lambda job: job.start_time or 0):
                if str(found.submission_id).startswith("sweep-"):
                    progress = "" if found.status.is_terminal() else f"  {_progress(client, found)}"
                    yield f"{found.submission_id}  {found.status.value}  {_times(found)}{progress}"
            return
        found = _known(client, submission_id)
        yield f"{submission_id}: {found.status.value} {_times(found)}"
        yield f"  {found.entrypoint}"
        yield f"  {_progress(client, found)}"
        if found.driver_exit_code is not None:
            yield f"  exit code {found.driver_exit_code}"
        if found.message:
            yield f"  {found.message.strip()}"
        yield from (f"  {name} = {value}" for name, value in sorted((found.metadata or {}).items()))


def _progress(client: "JobSubmissionClient", job: Any) -> str:
    """Where a job stands: by its progress.json, or where its store is not visible here by the last line of its log."""
    out = (job.metadata or {}).get("mulosd.out")
    said = read_progress(Path(out), job.submission_id) if out else None
    if said is None:
        log = _ask(client.get_job_logs, job.submission_id).splitlines()
        said = next((line for line in reversed(log) if line.partition(":")[0] in UNITS), None)
    return said or "no progress yet"


def exit_code(info: Any) -> int:
    """The driver's own exit code; 128 + signal where it was killed, 143 where it was stopped, 1 where it never ran."""
    if info.status.value == "SUCCEEDED":
        return 0
    if info.status.value == "STOPPED":
        return STOPPED_CODE
    code = info.driver_exit_code
    if code is None or code == 0:
        return 1
    return 128 - int(code) if code < 0 else int(code)


def _start(client: "JobSubmissionClient", **job: Any) -> None:
    """Submit; a head that has just started gets a minute for the agent that starts jobs.

    The id is ours, so a submission whose answer was lost is simply sent again.
    """
    deadline = time.monotonic() + PATIENCE_S
    is_lost = False
    problem: Exception
    while True:
        try:
            client.submit_job(**job)
            return
        except OSError as error:
            is_lost, problem = True, error
        except (RuntimeError, ValueError) as error:
            if is_lost and "already exists" in str(error):
                return
            if NO_AGENT not in str(error):
                raise EnvironmentProblem(f"the job server refused the job ({first_line(error)}).") from error
            problem = error
        if time.monotonic() > deadline:
            raise EnvironmentProblem(f"the job server did not accept the job ({first_line(problem)}).") from problem
        time.sleep(POLL_S)


def _ask(call: Callable[..., T], *args: Any) -> T:
    """The answer of the job server; a connection that breaks is tried again for a minute, since asking is harmless."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*args)
        except OSError as error:
            if time.monotonic() > deadline:
                raise EnvironmentProblem(f"the job server no longer answers ({first_line(error)}).") from error
        time.sleep(POLL_S)


async def _tail(client: "JobSubmissionClient", submission_id: str, skip: int, echo: Callable[[str], None]) -> int:
    """Print the log beyond its first `skip` characters, live; returns how many were printed."""
    seen = printed = 0
    async for text in client.tail_job_logs(submission_id):
        fresh = text[max(0, skip - seen) :]
        seen += len(text)
        if fresh:
            echo(fresh)
            printed += len(fresh)
    return printed


@contextmanager
def _client(address: str) -> "Iterator[JobSubmissionClient]":
    """Ray's client on exactly `address`: its own constructor prefers the environment to its argument."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    kept = {name: os.environ.pop(name) for name in ADDRESS_VARIABLES if name in os.environ}
    try:
        client = connect(JobSubmissionClient, address)
    except ConnectionError as error:
        raise EnvironmentProblem(
            f"no Ray job server answers at {address}; start one with `ray start --head`, or give --address."
        ) from error
    except AuthenticationError as error:
        raise EnvironmentProblem(f"the job server at {address} wants a token; {WANTS_TOKEN}.") from error
    except RuntimeError as error:
        raise EnvironmentProblem(
            f"the job server at {address} refused the connection ({first_line(error)})."
        ) from error
    finally:
        os.environ.update(kept)
    yield client


def connect(new_client: Callable[..., T], address: str) -> T:
    """A client; to a server on this machine that wants a token it shows the one that `ray start` found here.

    Ray's own client shows none unless RAY_AUTH_MODE says so; where it says anything, that is what holds.
    """
    from ray._raylet import AuthenticationTokenLoader
    from ray.exceptions import AuthenticationError

    try:
        return new_client(address)
    except AuthenticationError:
        tokens = AuthenticationTokenLoader.instance()
        is_here = urlsplit(address).hostname in LOOPBACK
        if MODE in os.environ or not is_here or not tokens.has_token(ignore_auth_mode=True):
            raise
    token = tokens.get_raw_token(ignore_auth_mode=True)
    return new_client(address, headers={"Authorization": f"Bearer {token}"})


def _known(client: "JobSubmissionClient", submission_id: str) -> Any:
    jobs = {job.submission_id: job for job in _ask(client.list_jobs) if job.submission_id}
    if submission_id not in jobs:
        raise unknown_name("job", submission_id, jobs)
    return jobs[submission_id]


def _absolute(path: str | Path) -> str:
    """The path from the root, without `..`; a link in it stays, since the cluster may have another behind it."""
    return os.path.abspath(path)


def _file_knobs(sweep: Sweep) -> set[str]:
    """Knobs of the sweep's methods that name a file."""
    kinds = {type(method) for method in sweep.methods}
    return {knob.name for kind in kinds for knob in declared_knobs(kind).values() if knob.doc.is_file}


def _named_files(node: Any, key: str, files: Collection[str], knob: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value) of every knob of `files` below `node`, wherever in a sweep's methods it stands."""
    if isinstance(node, str) and knob in files:
        yield key, node
    for name, value in node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ()):
        yield from _named_files(value, f"{key}.{name}", files, str(name) if isinstance(node, dict) else knob)


def _times(job: Any) -> str:
    if not job.start_time:
        return ""
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.start_time / 1000))
    return f"started {start}" + (f", {(job.end_time - job.start_time) / 1000:.0f} s" if job.end_time else "")
