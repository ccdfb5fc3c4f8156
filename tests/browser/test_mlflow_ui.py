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

from pipelines.compare.report import write_report
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.tracking.log_sweep import track
from pipelines.tracking.tracking_uri import default_uri
from tests import fakes

pytestmark = pytest.mark.browser

START_S = 240.0  # an idle machine needs about fifteen seconds
STEP_MS = 240_000  # each step of the UI is a second or two there; only a machine busy with other work comes near
CELLS = quote("tags.`mulosd.kind` = 'cell'")
SWEEP = "toy"
CHOSEN = ("fake-a ar", "fake-a mulosd pool_k=2 tau=0.2")
LOADED = """
    runs => runs.every(run => [...document.querySelectorAll("img[src*='get-artifact']")].some(
        image => image.src.includes(run) && image.naturalWidth > 0))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The toy sweep, reported and logged."""
    root = tmp_path_factory.mktemp("ui") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))
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

    client = MlflowClient(tracking_uri=default_uri(store.root))
    experiment = client.get_experiment_by_name("mulosd").experiment_id
    run_ids = {run.info.run_name: run.info.run_id for run in client.search_runs([experiment])}
    shots = Path(os.environ.get("MULOSD_SCREENSHOTS", tmp_path))
    runs = f"{server}/#/experiments/{experiment}/runs?searchFilter={CELLS}"
    page = browser.new_page(viewport={"width": 1900, "height": 1300})
    page.set_default_timeout(STEP_MS)
    try:
        _select(page, runs)
        page.screenshot(path=str(shots / "runs.png"))
        text = _compare(page)
        page.screenshot(path=str(shots / "compare.png"))
        rows = [line.split("\t") for line in text.splitlines()]
        assert ["method", "ar", "mulosd"] in rows
        assert ["tau", "n/a", "0.2"] in rows
        assert ["pool_k", "n/a", "2"] in rows
        assert "speed/forwards_per_image" in text

        _show_pictures(page, runs)
        page.wait_for_function(LOADED, arg=[run_ids[name] for name in CHOSEN])
        page.screenshot(path=str(shots / "pictures.png"))
    except Exception:
        page.screenshot(path=str(shots / "failed.png"))
        raise
    finally:
        page.close()


def _row(page: Any, name: str) -> Any:
    return page.locator("[role=row]", has=page.get_by_text(name, exact=True)).first


def _unfold(page: Any) -> None:
    """MLflow lists the cells below their sweep, folded at first (even where a search matches them alone)."""
    cell = page.get_by_text(CHOSEN[0], exact=True).first
    _row(page, SWEEP).wait_for()
    if not cell.is_visible():
        _row(page, SWEEP).locator("[col-id='attributes.`Run Name`'] button").first.click()
    cell.wait_for()


def _select(page: Any, url: str) -> None:
    page.goto(url, wait_until="commit")
    _unfold(page)
    for name in CHOSEN:
        # A row also has a box that hides and one that pins it.
        _row(page, name).locator(".ag-selection-checkbox input").check()


def _compare(page: Any) -> str:
    """The text of the comparison, a row of a table a line."""
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    page.get_by_text("speed/forwards_per_image").first.wait_for()
    text: str = page.locator("body").inner_text()
    return text


def _show_pictures(page: Any, url: str) -> None:
    """The chart view, searched for the grids of the prompts: charts below the window are not loaded."""
    page.goto(f"{url}&compareRunsMode=CHART", wait_until="commit")
    search = page.get_by_placeholder("Search metric charts")
    search.wait_for()
    _unfold(page)
    search.fill("prompt")
