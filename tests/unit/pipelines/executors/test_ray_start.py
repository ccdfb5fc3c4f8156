"""Which Ray a run uses: the environment decides, and leaves the user's home as it was."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mulosd.errors import ConfigError, EnvironmentProblem
from pipelines.executors import ray_start
from pipelines.executors.ray_start import MODE, TOKEN, TOKEN_PATH, forget_token, ray_running


class FakeRay:
    """Notes what it was started with; `error` is raised instead."""

    def __init__(self, error: Exception | None = None) -> None:
        import ray.exceptions

        self.exceptions = ray.exceptions
        self.error, self.is_up = error, False
        self.seen: list[SimpleNamespace] = []

    def is_initialized(self) -> bool:
        return self.is_up

    def init(self, **arguments: Any) -> None:
        os.environ.setdefault(MODE, "token")  # as Ray does for a local one
        self.seen.append(SimpleNamespace(arguments=arguments, token=os.environ.get(TOKEN)))
        if self.error:
            raise self.error
        self.is_up = True

    def shutdown(self) -> None:
        self.is_up = False


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (MODE, TOKEN, TOKEN_PATH, "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    yield
    forget_token()


def token_of(ray: FakeRay) -> str | None:
    with ray_running(ray):
        pass
    return ray.seen[-1].token


def test_a_local_ray_has_a_token_of_its_own_in_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    first, second = token_of(ray), token_of(ray)
    assert first is not None
    assert len(first) == 64
    assert first != second
    assert ray.seen[0].arguments["address"] == "local"
    assert not {MODE, TOKEN, TOKEN_PATH} & set(os.environ)
    assert not ray.is_up
    monkeypatch.setenv(MODE, "token")
    assert token_of(ray) is not None
    assert os.environ[MODE] == "token"
    assert TOKEN not in os.environ


@pytest.mark.parametrize(("name", "value"), [(TOKEN, "mine"), (TOKEN_PATH, "/my/token"), (MODE, "disabled")])
def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert token_of(FakeRay()) == ("mine" if name == TOKEN else None)
    assert os.environ[name] == value


def test_a_running_ray_is_used_and_left_running() -> None:
    ray = FakeRay()
    ray.is_up = True
    with ray_running(ray):
        pass
    assert ray.is_up
    assert ray.seen == []


def test_a_long_temporary_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, expected in (("/tmp", None), (f"/tmp/{'x' * 60}", "/tmp/ray")):
        monkeypatch.setenv("TMPDIR", folder)
        ray = FakeRay()
        token_of(ray)
        assert ray.seen[0].arguments["_temp_dir"] == expected
    assert "TMPDIR is too long for Ray's sockets" in caplog.text
    longest = "/" + (ray_start.MAX_TEMP_BYTES - 1) * "x"
    assert len(f"{longest}/ray/session_2026-12-01_03-23-35_376000_4194304/sockets/plasma_store") == 103
    with pytest.raises(EnvironmentProblem, match=r"cannot start on this machine \(AF_UNIX .*RAY_TMPDIR"):
        token_of(FakeRay(OSError("AF_UNIX path length cannot exceed 107 bytes")))
    assert TOKEN not in os.environ


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://head", "head", "head:x", "head:70000", ":6379"])
def test_what_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS={address} .*HOST:PORT.* unset"):
        token_of(FakeRay())


def test_a_cluster_that_cannot_be_joined_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import AuthenticationError

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:1 cannot be reached \(.*refused"):
        token_of(FakeRay())
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    for error, sentence in (
        (ConnectionError("none is\nrunning"), r"auto cannot be reached \(none is\)"),
        (AuthenticationError("no token"), f"wants a token; set {MODE}=token"),
        (RuntimeError("Version mismatch: 2.50\nand 2.60"), "has another version .* 2.50 and 2.60"),
    ):
        with pytest.raises(EnvironmentProblem, match=sentence):
            token_of(FakeRay(error))
    with pytest.raises(RuntimeError, match="a bug"):
        token_of(FakeRay(RuntimeError("a bug")))
