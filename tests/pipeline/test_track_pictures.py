"""The pictures of a cell for MLflow: the same keys in every cell, in the names that MLflow's own `log_image` gives."""

import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.results import collect
from pipelines.tracking.sweep_facts import dataset_of, facts_of
from pipelines.tracking.track import SweepMeta, contents_of
from pipelines.tracking.track_pictures import grid_samples, image_key, write_pictures
from tests.fakes import toy_sweep

NAME = re.compile(r"(?P<key>.+)\+step\+0\+timestamp\+(?P<time>\d+)\+[0-9a-f-]{36}(\+compressed\.webp|\.png)")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    run_sweep(toy_sweep(), out=tmp_path / "store")
    return Store.existing(tmp_path / "store")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_cells_share_keys_and_a_repeat_writes_the_same_files(store: Store, tmp_path: Path) -> None:
    ids = [f"toy/{i:03d}/0" for i in (0, 1, 5)]
    cells = [row.cell_key for row in collect(store)]
    keys = set()
    for cell in cells:
        assert write_pictures(store, cell, ids, 1234, tmp_path / cell) == 3
        written = files(tmp_path / cell)
        assert "contact_sheet.png" in written
        matches = [NAME.fullmatch(name.removeprefix("images/")) for name in written if name.startswith("images/")]
        assert len(matches) == 6
        keys.add(tuple(sorted({match["key"] for match in matches if match})))
        assert write_pictures(store, cell, ids, 1234, tmp_path / f"{cell}-again") == 3
        assert files(tmp_path / f"{cell}-again") == written
    assert keys == {("00 prompt 0", "01 prompt 1", "02 prompt 5")}
    with Image.open(next((tmp_path / cells[0] / "images").glob("*.png"))) as picture:
        assert picture.size == (8, 8)


def test_names_are_those_of_log_image(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    theirs = []

    @contextmanager
    def keep(self: Any, run_id: str, name: str) -> Any:
        theirs.append(name)
        yield str(tmp_path / Path(name).name)

    tags = []
    monkeypatch.setattr(MlflowClient, "_log_artifact_helper", keep)
    monkeypatch.setattr(MlflowClient, "set_tag", lambda self, run_id, name, value, *_: tags.append((name, value)))
    client = MlflowClient.__new__(MlflowClient)
    client.log_image("run", Image.new("RGB", (8, 8)), key="00 prompt 0", timestamp=1234, synchronous=True)
    write_pictures(store, collect(store)[0].cell_key, ["toy/000/0"], 1234, tmp_path / "ours")
    ours = [name for name in files(tmp_path / "ours") if name.startswith("images/")]

    def without_uuid(names: list[str]) -> list[str]:
        return sorted(re.sub(r"[0-9a-f-]{36}", "*", name) for name in names)

    assert without_uuid(ours) == without_uuid(theirs)
    assert [name for name, _ in tags] == ["mlflow.loggedImages"]


def test_missing_samples_are_counted(store: Store, tmp_path: Path) -> None:
    cell = collect(store)[0].cell_key
    assert write_pictures(store, cell, ["toy/000/0", "toy/other/0"], 1, tmp_path / "a") == 1
    assert write_pictures(store, cell, ["toy/other/0"], 1, tmp_path / "b") == 0


def test_grid_is_the_first_image_of_at_most_32_prompts() -> None:
    ids = [f"x/{i}/{image}" for i in range(100) for image in (0, 1)]
    assert grid_samples(ids, 3) == [f"x/{i}/0" for i in range(32)]
    assert len(grid_samples(ids, 200)) == 10
    assert len(grid_samples(ids, 10_000)) == 4
    assert image_key(3, "a «red» circle/é, big") == "03 a red circle big"


def test_what_the_runs_of_a_sweep_carry(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = store.sweep_keys()[-1]
    record = store.read_sweep(key)
    facts = facts_of(record)
    assert facts["mulosd.executor"] == "inprocess"
    assert facts["mulosd.version.pillow"]
    assert "mulosd.ray_job_id" not in facts
    dirty = {**record, "record": {**record["record"], "git": {"commit": "c", "diff_sha256": "d"}, "job": "sweep-1"}}
    assert facts_of(dirty)["mulosd.dirty"] == "true"
    assert facts_of(dirty)["mulosd.ray_job_id"] == "sweep-1"
    dataset = dataset_of(store, record)
    assert (dataset["name"], dataset["digest"], dataset["num_prompts"]) == ("toy", "toy-prompts-1", 10)
    meta = SweepMeta(key, "toy", facts, dataset=dataset)
    contents = contents_of(collect(store), meta, store)
    cell = next(iter(contents.values()))
    assert cell["pictures"] == [f"toy/{i:03d}/0" for i in range(10)]
    assert cell["tags"]["mulosd.stage"].startswith(str(store.root))
    assert len(cell["tags"]["mulosd.stage_sha"]) == 16
