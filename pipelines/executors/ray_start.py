"""Ray for this process: the cluster that RAY_ADDRESS names is joined, otherwise a local one is started.

A local one gets a token of its own, in the environment only. Ray itself would write one to ~/.ray/auth_token, where
every cluster that the user starts later finds it and wants it from everybody who connects.
"""

import logging
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from mulosd.errors import ConfigError, EnvironmentProblem, first_line

log = logging.getLogger(__name__)

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
WANTS_TOKEN = (
    f"set {MODE}=token, and {TOKEN} or {TOKEN_PATH} to what it was started with where that is not ~/.ray/auth_token"
)
ANSWER_S = 5.0  # for the first connection: Ray itself tries for two minutes
# Ray's sockets, .../ray/session_2026-12-01_03-23-35_376000_4194304/sockets/plasma_store, must fit into 103 bytes.
MAX_TEMP_BYTES = 103 - len("/ray/session_2026-12-01_03-23-35_376000_4194304/sockets/plasma_store")
SHORT = Path("/tmp")


@contextmanager
def ray_running(ray: Any) -> Iterator[None]:
    """Ray is initialised inside, and shut down afterwards where this started or joined it."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS")
    with _joined(ray, address) if address and address != "local" else _local(ray):
        yield


@contextmanager
def _joined(ray: Any, address: str) -> Iterator[None]:
    _check_address(address)
    try:
        ray.init(log_to_driver=False)  # without arguments: a job's own runtime environment must stay in force
    except ConnectionError as error:
        _unreachable(address, error)
    except ray.exceptions.AuthenticationError as error:
        raise EnvironmentProblem(f"the Ray cluster at {address} wants a token; {WANTS_TOKEN}.") from error
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise EnvironmentProblem(
            f"the Ray cluster at {address} has another version ({' '.join(str(error).split())}); "
            "install the same versions of Python and Ray on all nodes."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _local(ray: Any) -> Iterator[None]:
    with _own_token():
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, _temp_dir=_temp_dir())
        except OSError as error:
            raise EnvironmentProblem(
                f"Ray cannot start on this machine ({error}); it needs room and a writable folder with a short path: "
                "name one in RAY_TMPDIR."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _own_token() -> Iterator[None]:
    """A token for one local Ray. What the user has chosen stays: a token, its file, or none at all."""
    mode = os.environ.get(MODE)
    if TOKEN in os.environ or TOKEN_PATH in os.environ or (mode or "token") != "token":
        yield
        return
    os.environ[TOKEN] = secrets.token_hex(32)
    forget_token()
    try:
        yield
    finally:
        del os.environ[TOKEN]
        os.environ.pop(MODE, None)  # set by Ray
        if mode is not None:
            os.environ[MODE] = mode
        forget_token()


def forget_token() -> None:
    """Let Ray look again: it reads a token once per process."""
    from ray._raylet import AuthenticationTokenLoader

    AuthenticationTokenLoader.instance().reset_cache()


def _temp_dir() -> str | None:
    """Where a local Ray keeps its session; None for Ray's own choice. Paths of sockets have a limit."""
    chosen = os.environ.get("TMPDIR", tempfile.gettempdir())
    if "RAY_TMPDIR" in os.environ or len(os.fsencode(chosen)) <= MAX_TEMP_BYTES:
        return None
    log.warning("the path of TMPDIR is too long for Ray's sockets: Ray's session is in %s", SHORT / "ray")
    return str(SHORT / "ray")


def _check_address(address: str) -> None:
    """ConfigError for what is not the address of a cluster, EnvironmentProblem where nothing answers at it."""
    if re.match(r"https?://", address):
        raise ConfigError(
            f"RAY_ADDRESS={address} names a job server, which `mulosd submit` talks to; here name the cluster itself "
            "as HOST:PORT, or unset RAY_ADDRESS to start a local Ray."
        )
    if address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"RAY_ADDRESS={address} is not the address of a Ray cluster; allowed: HOST:PORT (of `ray start`, usually "
            "port 6379), auto, or unset to start a local Ray."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        _unreachable(address, error)


def _unreachable(address: str, error: OSError) -> NoReturn:
    raise EnvironmentProblem(
        f"the Ray cluster at {address} cannot be reached ({first_line(error)}); start it, or unset RAY_ADDRESS "
        "to use a local one."
    ) from error
