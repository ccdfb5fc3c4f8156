"""Rows and pictures of a store."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from mulosd.errors import ConfigError, DataError
from mulosd.types import COUNTERS
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.results import collect, pictures
from tests import fakes
from tests.fakes import toy_sweep


@pytest.fixture
def store(tmp_path: Path) -> Path:
    run_sweep(toy_sweep(), out=tmp_path)
    return tmp_path


def test_rows(store: Path) -> None:
    rows = collect(store)
    assert [row.label for row in rows] == ["ar", "mulosd pool_k=2 tau=0.05", "mulosd pool_k=2 tau=0.2"]
    assert [row.cell_key for row in rows] == [cell.key for cell in build_plan(toy_sweep()).cells]
    assert rows[0].n_target_tokens == 16
    assert rows[0].target == "fake-a"
    assert set(rows[0].counters) == set(COUNTERS)
    assert rows[0].counters["forwards_resample"] == {f"toy/{i:03d}/0": 16 for i in range(10)}
    assert rows[0].latency == {}


def test_pictures(store: Path) -> None:
    plan = build_plan(toy_sweep())
    found = pictures(store, plan.cells[0].key, 5)
    expected = fakes.FakeTarget("fake-a").one("prompt 4", plan.cells[0].chunks[1].samples[0].seed, plan.cells[0].method)
    assert len(found) == 5
    assert (found[4].sample_id, found[4].prompt, found[4].forwards) == ("toy/004/0", "prompt 4", 16)
    np.testing.assert_array_equal(found[4].image, expected.image)
    np.testing.assert_array_equal(found[4].status, expected.status)
    assert len(pictures(Store(store), plan.cells[0].key)) == 10


def test_pictures_are_read_no_further_than_needed(store: Path, tmp_path: Path) -> None:
    cell = build_plan(toy_sweep()).cells[0]
    shutil.copytree(store, tmp_path / "store")
    opened = Store(tmp_path / "store")
    opened.chunk_path(cell.key, 1).write_bytes(b"damaged")
    wanted = ["toy/002/0", "toy/000/0"]
    assert [p.sample_id for p in pictures(opened, cell.key, sample_ids=wanted)] == ["toy/000/0", "toy/002/0"]
    assert len(pictures(opened, cell.key, 2)) == 2
    with pytest.raises(DataError, match="damaged"):
        pictures(opened, cell.key, sample_ids=[*wanted, "toy/009/0"])


def test_what_is_not_there(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a store"):
        collect(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="unknown sweep key"):
        collect(store, "0" * 16)
    with pytest.raises(DataError, match="holds no cell"):
        pictures(store, "0" * 16)
    with pytest.raises(DataError, match="is not a key"):
        pictures(store, "../sweeps")
    (tmp_path / "empty" / "cells").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no finished sweep"):
        collect(tmp_path / "empty")


def test_a_sample_that_occurs_twice_is_refused(store: Path) -> None:
    opened, cell = Store(store), build_plan(toy_sweep()).cells[0].key
    first, second = (opened.chunk_path(cell, index) for index in (0, 1))
    second.write_bytes(first.read_bytes())
    with pytest.raises(DataError, match=r"chunk-00001.parquet holds sample toy/000/0 a second time"):
        collect(store)
