"""The MLflow UI as a user sees it: two runs of a sweep side by side, with their parameters, metrics and pictures."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pipelines.driver import run_sweep
from pipelines.report import track, write_report
from pipelines.store import Store
from pipelines.tracking_uri import default_uri
from tests import fakes

pytestmark = pytest.mark.browser

START_S = 240.0  # an idle machine needs about fifteen seconds
STEP_MS = 120_000
CELLS = quote("tags.`mulosd.kind` = 'cell'")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The toy sweep, reported and logged."""
    root = tmp_path_factory.mktemp("ui") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))
        run_sweep(fakes.toy_sweep(), out=root)
    opened = Store.existing(root)
    write_report(opened)
    assert track(opened)
    return opened


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[str]:
    """`mulosd ui` on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pipelines.cli", "ui", str(store.root), "--port", str(port)]
    log = store.root / "ui.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2])
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace"))


def test_two_runs_are_compared(browser: Any, server: str, store: Store, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    experiment = MlflowClient(tracking_uri=default_uri(store.root)).get_experiment_by_name("mulosd").experiment_id
    shots = Path(os.environ.get("MULOSD_SCREENSHOTS", tmp_path))
    page = browser.new_page(viewport={"width": 1700, "height": 1300})
    page.set_default_timeout(STEP_MS)
    runs = f"{server}/#/experiments/{experiment}/runs?searchFilter={CELLS}"

    page.goto(runs)
    page.get_by_text("fake-a ar", exact=True).first.wait_for()
    boxes = page.locator(
        ".ag-center-cols-container [role=row] input[type=checkbox], .ag-pinned-left-cols-container "
        "[role=row] input[type=checkbox]"
    )
    for name in ("fake-a ar", "fake-a mulosd pool_k=2 tau=0.2"):
        row = page.locator("[role=row]", has=page.get_by_text(name, exact=True)).first
        row.locator("input[type=checkbox]").first.check(force=True)
    page.screenshot(path=str(shots / "runs.png"))
    assert boxes.count() >= 2
    page.get_by_role("button", name="Compare").first.click()
    page.get_by_text("Comparing 2 Runs").wait_for()
    body = page.locator("body")
    page.get_by_text("mean_ci_lo").or_(page.get_by_text("speed/forwards_per_image")).first.wait_for()
    text = body.inner_text()
    page.screenshot(path=str(shots / "compare.png"), full_page=True)
    assert {"tau", "pool_k", "method", "0.2", "n/a"} <= set(text.split())
    assert "speed/forwards_per_image" in text

    page.goto(f"{runs}&compareRunsMode=CHART")
    picture = page.locator("img[src*='get-artifact']").first
    picture.wait_for()
    page.wait_for_function(
        "[...document.querySelectorAll(\"img[src*='get-artifact']\")].every(i => i.naturalWidth > 0)"
    )
    page.screenshot(path=str(shots / "pictures.png"))
    assert page.locator("img[src*='get-artifact']").count() >= 2
    page.close()
