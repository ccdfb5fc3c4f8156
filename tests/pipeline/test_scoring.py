"""States are read back only when they are what was written, and can run no code."""

import pickle
import subprocess
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
import pytest

from evaluators.state import SampleState
from evaluators.statistics.intervals import paired_difference
from mulosd.errors import DataError
from mulosd.files.publish import sha256_hex
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.results import collect
from pipelines.store.scores import read_metrics
from pipelines.work.score import load_state
from tests.fakes import toy_sweep


def store_state(path: Path, state: Any) -> str:
    data = pickle.dumps(state, protocol=5)
    path.write_bytes(data)
    return sha256_hex(data)


STATES = [
    {"sum": np.eye(3), "n": 4, "scalar": np.float64(2.5), "half": np.float16(1.5), "ids": {"a", "b"}},
    SampleState({"toy/1/0": {"status": "scored", "correct": True}}),
    (1, None, [2.5, "text", b"bytes"]),
    np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_states_survive(tmp_path: Path, state: Any) -> None:
    digest = store_state(tmp_path / "s", state)
    loaded = load_state(tmp_path / "s", digest)
    assert type(loaded) is type(state)
    assert pformat(loaded) == pformat(state)  # repr, but for the order of a set, which differs by process


class Planted:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "planted",
    [
        Planted(subprocess.check_output, ["true"]),
        Planted(eval, "1 + 1"),
        Planted(np.load, "file.npy"),
        Planted(np.memmap, "file.npy", "uint8", "w+", 0, 8),
        Planted(paired_difference, {}, {}),
        Planted(getattr, "a", "upper"),
    ],
)
def test_planted_code_does_not_run(tmp_path: Path, planted: Planted) -> None:
    digest = store_state(tmp_path / "s", planted)
    with pytest.raises(DataError, match="no score state"):
        load_state(tmp_path / "s", digest)


def test_a_changed_state_is_refused(tmp_path: Path) -> None:
    digest = store_state(tmp_path / "s", {"n": 1})
    store_state(tmp_path / "s", {"n": 2})
    with pytest.raises(DataError, match="does not match its manifest"):
        load_state(tmp_path / "s", digest)
    with pytest.raises(DataError, match="cannot be read"):
        load_state(tmp_path / "missing", digest)


def test_scores_of_replaced_images_are_not_reported(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=5)
    first = build_plan(toy_sweep(), limit=5)
    run_sweep(toy_sweep(name="second"), out=tmp_path)
    # Chunk 1 of the first sweep was replaced by a longer one, so its scores went with it.
    with pytest.raises(DataError, match="no longer holds this sweep's score"):
        collect(tmp_path, first.sweep_key)
    run_sweep(toy_sweep(), out=tmp_path, limit=5)
    assert collect(tmp_path, first.sweep_key)[0].metrics["mean"]["n"] == 5


def test_read_metrics_needs_its_basis(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=2)
    (folder,) = next((tmp_path / "cells").iterdir()).glob("scores/*")
    with pytest.raises(DataError, match="no longer holds"):
        read_metrics(folder, "0" * 16)
