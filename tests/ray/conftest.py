"""One local Ray for all tests of this folder, and the toy prompt set."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import fakes

# A token of this test run's own, before Ray is loaded: clusters of other people on this machine stay apart, and the
# one in the home folder is neither made nor used.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

STEERED = (fakes.FAIL_FILE, fakes.DIE_FILE, fakes.LOAD_FILE, fakes.ENCODE_FILE)


@pytest.fixture(autouse=True)
def toy_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the files that steer the fakes; workers inherit the environment of Ray's start."""
    import ray

    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        for variable in STEERED:
            patch.setenv(variable, str(folder / variable))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        # The GPUs are bookkeeping only; the fakes need none.
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield folder
        ray.shutdown()


@pytest.fixture
def steer(cluster: Path) -> Iterator[Callable[..., None]]:
    """steer(FAIL_FILE, texts...) makes the decoding of these prompts fail; everything works again afterwards."""

    def write(variable: str, *texts: str) -> None:
        (cluster / variable).write_text("\n".join(texts))

    yield write
    for variable in STEERED:
        (cluster / variable).unlink(missing_ok=True)
        assert os.environ[variable] == str(cluster / variable)
