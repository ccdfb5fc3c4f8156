"""Markers that are off by default say why they are skipped; the rest runs everywhere."""

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

OPTIONAL = {
    "gpu": "needs a CUDA device; run with --gpu",
    "slow": "takes minutes; run with --slow",
}


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests and real runs on one host do not wait for each other."""
    os.environ.setdefault("MULOSD_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, reason in OPTIONAL.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also run tests marked {name} ({reason})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, reason in OPTIONAL.items():
        if config.getoption(f"--{name}"):
            continue
        for item in items:
            if name in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
