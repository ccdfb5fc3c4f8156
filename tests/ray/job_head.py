"""A real Ray head with its job server, for tests: bound to this machine, on free ports, in a short folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PORTS = {
    "--port": "gcs",
    "--dashboard-port": "dashboard",
    "--ray-client-server-port": "client",
    "--dashboard-agent-listen-port": "agent",
    "--dashboard-agent-grpc-port": "agent-grpc",
    "--runtime-env-agent-port": "runtime-env",
    "--metrics-export-port": "metrics",
}
START_S = 180.0  # idle machines need about ten seconds


@contextmanager
def ray_head(*, num_cpus: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a head and yield the URL of its job server; ended by its own process group, never by `ray stop`.

    environment: that of the head, without its address variables; by default that of this process.
    """
    # Socket paths have a length limit, so the folder is not below pytest's.
    folder = Path(tempfile.mkdtemp(prefix="mr", dir="/tmp"))
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    bin_dir = Path(sys.executable).parent
    command = [str(bin_dir / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += ["--dashboard-host=127.0.0.1", f"--num-cpus={num_cpus}", f"--temp-dir={folder}", "--disable-usage-stats"]
    command += [f"{option}={port}" for option, port in ports.items()]
    given = os.environ if environment is None else environment
    env = {name: value for name, value in given.items() if not name.startswith("RAY_") or "AUTH" in name}
    env |= {"PATH": f"{bin_dir}{os.pathsep}{env.get('PATH', '')}", "OMP_WAIT_POLICY": "passive"}
    log = (folder / "start.log").open("wb")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    address = f"http://127.0.0.1:{ports['--dashboard-port']}"
    try:
        token = env.get("RAY_AUTH_TOKEN") or (Path(env["HOME"]) / ".ray" / "auth_token").read_text()
        _wait(process, address, token, folder / "start.log")
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: "subprocess.Popen[bytes]", address: str, token: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    request = urllib.request.Request(f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace"))


def _free_ports(num: int) -> list[int]:
    held = [socket.socket() for _ in range(num)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
