"""Markers that are off by default say why they are skipped; the rest runs everywhere."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded: workers share the cores
    cores = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as under nohup or `&`: children would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine, and no time limit that a busy one would miss. To look for new examples:
# pytest --hypothesis-profile=default
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

RAY = ("tests/ray/", "tests/contract/test_commands.py")  # files that start it, which takes long
ASSETS = Path(__file__).parents[1] / "mulosd" / "assets"
OPTIONAL = {
    "gpu": "needs a CUDA device; run with --gpu",
    "slow": "takes minutes; run with --slow",
}


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests and real runs on one host do not wait for each other."""
    os.environ.setdefault("MULOSD_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))


@pytest.fixture(scope="session", autouse=True)
def installed_files_stay() -> Iterator[None]:
    """Nothing that the tests run writes into the installed program."""
    before = _stamps()
    yield
    assert _stamps() == before


def _stamps() -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in ASSETS.rglob("*")}


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, reason in OPTIONAL.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run tests marked {name} ({reason})")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n` a file is one worker's, so that its fixtures are made once, and all of RAY is."""
    from xdist.scheduler import LoadScopeScheduling  # its own groups do not work with pytest 9.2 (xdist 3.8)

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "ray" if nodeid.startswith(RAY) else nodeid.partition("::")[0]

    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(RAY))  # first
    for name, reason in OPTIONAL.items():
        if config.getoption(f"--{name}"):
            continue
        for item in items:
            if name in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
