"""`mulosd stage` on a store: repair and run again gives the sound store; prune removes what nobody needs."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError, DataError
from mulosd.files.publish import publish_json
from mulosd.stage.manifest import chunk_path, read_manifest
from mulosd.stage.verify import verify_store
from pipelines.cli.stage import stage
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.upkeep import cell_keys, export_cells, prune_store, refused_cells, repair_store
from tests import fakes
from tests.fakes import toy_sweep


def tree(root: Path, *skipped: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in (".lock", "progress.json", *skipped)
    }


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 20 if b"IDAT" in data else len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    run_sweep(toy_sweep(), out=tmp_path)
    return Store.existing(tmp_path)


def call(*args: object) -> str:
    result = CliRunner().invoke(stage, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_repair_and_run_again_is_the_sound_store(store: Store) -> None:
    before = tree(store.root, "cell.json", "sweep.json")
    first, second, third = cell_keys(store)
    damage(store.chunk_path(first, 1))
    damage(store.cell_dir(second) / "manifest.json")
    damage(store.cell_dir(third) / "cell.json")
    for path in store.cell_dir(third).glob("scores/*/*"):
        damage(path)
    damage(store.root / "sweeps" / build_plan(toy_sweep()).sweep_key / "sweep.json")
    assert len(verify_store(store.root)) >= 6
    broken = tree(store.root)
    planned = call("repair", store.root, "--dry-run")
    assert "nothing was changed (--dry-run)" in planned
    assert tree(store.root) == broken
    assert "now run the sweep again" in call("repair", store.root)
    report = run_sweep(toy_sweep(), out=store.root)
    # Chunk 1 of one cell is decoded anew; the chunks without a manifest prove themselves.
    assert (report.decoded, report.cached) == (4, 26)
    assert verify_store(store.root) == []
    call("prune", store.root)
    assert tree(store.root, "cell.json", "sweep.json") == before
    assert "nothing to repair" in call("repair", store.root)


def test_a_missing_cell_record_is_written_again(store: Store) -> None:
    key = cell_keys(store)[0]
    before = store.read_cell(key)["config"]
    (store.cell_dir(key) / "cell.json").unlink()
    assert run_sweep(toy_sweep(), out=store.root).decoded == 0
    assert store.read_cell(key)["config"] == before


def test_cells_in_work_are_left_alone(store: Store) -> None:
    key = cell_keys(store)[1]
    temp = store.cell_dir(key) / "images" / ".chunk-00000.parquet.ab.tmp"
    temp.write_bytes(b"half")
    damage(store.chunk_path(key, 0))
    other = Store.existing(store.root)
    with store.lock_cell(key):
        assert [str(item) for item in repair_store(other) if "is locked by process" in str(item)]
        assert [str(item) for item in prune_store(other) if "is locked by process" in str(item)]
        assert temp.exists()
    assert store.chunk_path(key, 0).exists()
    assert [item.path for item in prune_store(other) if hasattr(item, "path")] == [temp]
    assert not temp.exists()


def test_prune_unused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(methods=[{"method": "draft-only"}], evaluators=[], name="stopped"), out=store.root)
    (extra,) = set(cell_keys(store)) - {cell.key for cell in build_plan(toy_sweep()).cells}
    stopped = build_plan(toy_sweep(methods=[{"method": "draft-only"}], evaluators=[], name="stopped")).sweep_key
    (store.root / "sweeps" / stopped / "sweep.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(fakes.MeanEvaluator, "version", "2")
        run_sweep(toy_sweep(), out=store.root)
    before = tree(store.root)
    assert "0.0 MiB freed" in call("prune", store.root)
    assert tree(store.root) == before
    text = call("prune", store.root, "--unused", "--dry-run")
    assert text.count("no finished sweep names this cell") == 1
    assert text.count("no finished sweep names this score") == 3  # version 1, in three cells
    assert tree(store.root) == before
    call("prune", store.root, "--unused")
    assert extra not in cell_keys(store)
    assert verify_store(store.root) == []
    monkeypatch.setattr(fakes.MeanEvaluator, "version", "2")
    assert run_sweep(toy_sweep(), out=store.root).scores_cached == 3
    damage(next(store.root.glob("sweeps/*/sweep.json")))
    with pytest.raises(DataError, match="unused data cannot be determined"):
        list(prune_store(store, unused=True))


def test_prune_finds_what_a_killed_maker_of_the_tracking_file_left(store: Store) -> None:
    old, young = store.root / ".mlflow.db.abc.tmp-journal", store.root / ".mlflow.db.abd.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert [str(item).partition(":")[0] for item in prune_store(store)] == [str(old)]
    assert (old.exists(), young.exists()) == (False, True)


def test_export(store: Store, tmp_path: Path) -> None:
    import datasets

    out = tmp_path / "exported"
    assert "would write 30 rows" in call("export", store.root, "--out", out, "--dry-run")
    assert not out.exists()
    key = cell_keys(store)[2]
    assert "wrote 10 rows" in call("export", store.root, "--out", out, "--cell", key)
    assert set(datasets.load_from_disk(str(out))["cell_key"]) == {key}
    with pytest.raises(ConfigError, match="exists already"):
        export_cells(store, out, dry_run=True)
    with pytest.raises(ConfigError, match="holds no cell nothing"):
        export_cells(store, tmp_path / "b", ["nothing"])
    damage(chunk_path(store.cell_dir(key), 0))
    with pytest.raises(DataError, match="does not match its manifest"):
        export_cells(store, tmp_path / "b", dry_run=True)


def test_verify_names_the_next_step(store: Store) -> None:
    assert "every chunk matches its manifest" in call("verify", store.root)
    key = cell_keys(store)[0]
    damage(store.chunk_path(key, 0))
    with pytest.raises(DataError, match=r"1 problem\(s\); `mulosd stage repair`"):
        call("verify", store.root)
    assert len(read_manifest(store.cell_dir(key))) == 3


def test_verify_names_cells_with_settings_that_are_refused_today(store: Store) -> None:
    """Guidance 0 and 0.5 were taken once and gave the image of 1."""
    key = cell_keys(store)[0]
    path = store.cell_dir(key) / "cell.json"
    content = store.read_cell(key)
    publish_json(path, {**content, "config": {**content["config"], "knobs": {"guidance": 0.5}}})
    for folder in (store.root, store.cell_dir(key)):
        (problem,) = refused_cells(folder)
        assert problem.path == path
        assert "guidance = 0.5 is too small; the smallest allowed value is 1 (no guidance)" in str(problem)
        with pytest.raises(DataError, match=r"no run continues 1 cell"):
            call("verify", folder)
    with pytest.raises(ConfigError, match=r"guidance = 0\.5 is too small"):
        toy_sweep(methods=[{"method": "ar", "set": {"guidance": 0.5}}])
    assert list(repair_store(store)) == []
    assert refused_cells(store.cell_dir(cell_keys(store)[1])) == []


def test_verify_advises_no_repair_where_nothing_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.cli.stage import verify

    run_sweep(toy_sweep(), out=tmp_path, limit=1)
    monkeypatch.setattr("pipelines.store.upkeep.refused_cells", lambda folder: ["an old cell"])
    with pytest.raises(DataError, match="no run continues 1 cell"):
        verify.callback(tmp_path)
    next(tmp_path.glob("cells/*/images/*.parquet")).write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"2 problem\(s\); `mulosd stage repair`"):
        verify.callback(tmp_path)
