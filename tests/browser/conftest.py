"""A headless Chromium, or a skip that says why there is none."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
]


@pytest.fixture(scope="module")  # no longer: its event loop would run on under the tests that follow
def browser() -> Iterator[Any]:
    """MULOSD_CHROMIUM names the program where it is not on the path."""
    path = os.environ.get("MULOSD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed (`apt-get install chromium`), or set MULOSD_CHROMIUM to its program")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the dev extra has it)")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=120_000)
        yield chromium
        chromium.close()
