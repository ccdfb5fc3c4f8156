"""States are read back only when they are what was written, and can run no code."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from evaluators.features.base import FeatureState
from evaluators.state import SampleState
from mulosd.errors import DataError
from mulosd.files.publish import publish_json, sha256_hex
from mulosd.stage.verify import verify_store
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.results import collect
from pipelines.store.scores import read_metrics
from pipelines.work.score import load_state
from tests.fakes import toy_sweep


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=3).astype(np.float32)


def store_state(path: Path, state: Any) -> str:
    path.write_bytes(state.to_bytes())
    return sha256_hex(path.read_bytes())


STATES = [
    SampleState(),
    SampleState(
        {"toy/ü/0": {"status": "scored", "correct": True, "x": [1, 0.1, None, {"y": "\x85 z"}], "n": -(2**62)}}
    ),
    FeatureState(),
    FeatureState({"a/1/0": vector(1), "a/0/0": vector(2)}, {"a/1/0": vector(3)}, frozenset({"ü/9/0", "b"})),
]


@pytest.mark.parametrize("state", STATES, ids=["no-samples", "samples", "no-features", "features"])
def test_states_survive(tmp_path: Path, state: SampleState | FeatureState) -> None:
    loaded = load_state(tmp_path / "s", store_state(tmp_path / "s", state), type(state))
    assert type(loaded) is type(state)
    assert loaded.to_bytes() == state.to_bytes()
    if isinstance(loaded, FeatureState):
        assert all(np.array_equal(loaded.decoded[key], value) for key, value in state.decoded.items())
        assert all(value.dtype == np.float32 for value in loaded.decoded.values())


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.floats() | st.integers() | st.text() | st.none())))
def test_records_of_any_kind_survive(records: dict[str, dict[str, Any]]) -> None:
    assert repr(SampleState.from_bytes(SampleState(records).to_bytes()).records) == repr(records)


class Mark:
    """Would make a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


IDS = np.frombuffer(b'{"decoded": ["a"], "reference": [], "missing": []}', np.uint8)
NO_STATES: list[bytes] = [
    b"",
    b"{}",
    b"[]",
    b'{"records": [1]}',
    b'{"records": {"a": 1}}',
    b'{"records": ' + b"[" * 1000,
    save({"ids": IDS}),
    save({"ids": IDS, "decoded": np.zeros((2, 3), np.float32)}),
    save({"ids": IDS, "decoded": np.zeros((1, 3), np.float64)}),
    save({"ids": np.frombuffer(b"[]", np.uint8)}),
    save({"decoded": np.zeros((1, 3), np.float32)}),
]


@pytest.mark.parametrize("kind", [SampleState, FeatureState])
def test_anything_else_is_refused_and_nothing_of_it_runs(
    tmp_path: Path, kind: type[SampleState | FeatureState]
) -> None:
    planted = pickle.dumps(Mark(tmp_path / "ran"))
    for data in (planted, *NO_STATES):
        (tmp_path / "s").write_bytes(data)
        with pytest.raises(DataError, match="holds no score state"):
            load_state(tmp_path / "s", sha256_hex(data), kind)
    assert not (tmp_path / "ran").exists()
    pickle.loads(planted)
    assert (tmp_path / "ran").exists()  # it was a real one


def test_a_changed_state_is_refused(tmp_path: Path) -> None:
    digest = store_state(tmp_path / "s", SampleState())
    (tmp_path / "s").write_bytes(b"{}")
    with pytest.raises(DataError, match="does not match its manifest"):
        load_state(tmp_path / "s", digest, SampleState)
    with pytest.raises(DataError, match="cannot be read"):
        load_state(tmp_path / "missing", digest, SampleState)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "state-changed": lambda folder: damage(folder / "chunk-00001.json"),
    "state-gone": lambda folder: (folder / "chunk-00001.json").unlink(),
    "manifest-changed": lambda folder: damage(folder / "manifest.json"),
    "manifest-gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest-no-text": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"),
    "metrics-changed": lambda folder: damage(folder / "metrics.json"),
}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", DAMAGE)
def test_a_run_scores_again_what_verify_finds_damaged(tmp_path: Path, name: str) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    before = collect(tmp_path)
    folder = next(tmp_path.glob("cells/*/scores/*"))
    DAMAGE[name](folder)
    assert len(verify_store(tmp_path)) == 1
    report = run_sweep(toy_sweep(), out=tmp_path)
    assert (report.decoded, report.scores_done, report.scores_cached) == (0, 1, 2)
    assert verify_store(tmp_path) == []
    assert collect(tmp_path) == before
    assert run_sweep(toy_sweep(), out=tmp_path).scores_done == 0


@pytest.mark.parametrize(
    ("name", "value"), [("manifest.json", [1]), ("manifest.json", {"files": {"a": {}}}), ("metrics.json", 5)]
)
def test_a_whole_file_of_another_form_is_made_again(tmp_path: Path, name: str, value: Any) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    before = collect(tmp_path)
    publish_json(next(tmp_path.glob("cells/*/scores/*")) / name, value)
    assert run_sweep(toy_sweep(), out=tmp_path).scores_done == 1
    assert collect(tmp_path) == before


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
