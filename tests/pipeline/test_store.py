"""Locks and paths of the store."""

import threading
import time
from pathlib import Path

import pytest

from mulosd.errors import DataError
from pipelines.store.layout import Store


def test_a_cell_has_one_writer(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    events: list[str] = []

    def second() -> None:
        with store.lock_cell("abc"):
            events.append("second")

    with store.lock_cell("abc"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        events.append("first")
    thread.join(timeout=60)
    assert events == ["first", "second"]


def test_other_cells_are_free(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.lock_cell("abc"), store.lock_cell("abd"):
        pass


@pytest.mark.parametrize("key", ["", "..", "a/b", ".hidden", "a\\b", "a b"])
def test_keys_never_leave_the_store(tmp_path: Path, key: str) -> None:
    store = Store(tmp_path)
    for folder in (store.cell_dir, store.sweep_dir, store.bench_dir):
        with pytest.raises(DataError, match="is not a key"):
            folder(key)


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("runs").chunk_path("abc", 3) == tmp_path / "runs/cells/abc/images/chunk-00003.parquet"
    assert Store("runs").outbox == tmp_path / "runs/outbox"
