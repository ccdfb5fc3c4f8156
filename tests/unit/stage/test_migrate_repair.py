"""Older formats are read as today's; damaged files are moved away and nothing else; what is left over can be found."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.files.publish import publish_bytes, publish_json, publish_over, read_json, sha256_hex
from mulosd.stage import verify
from mulosd.stage.export import check_export, export_dataset
from mulosd.stage.manifest import chunk_path, read_manifest, write_manifest
from mulosd.stage.migrate import version_of
from mulosd.stage.prune import leftovers
from mulosd.stage.read import check_unique, iter_cell, read_rows
from mulosd.stage.repair import repair_cell
from mulosd.stage.schema import COLUMNS, arrow_schema, rows_digest
from mulosd.stage.write import entry_of, prompt_columns, publish_chunk
from mulosd.types import PromptTokens
from tests.fakes import without_hard_links
from tests.unit.stage.rows import make_cell, row, write_chunk

PROMPT = ("prompt_tokens", "prompt_unknown", "prompt_cut")


def write_v0(cell: Path) -> None:
    """A cell as version 0 wrote it: a latency in every row, no batch_images, no `failed` in the manifest."""
    table = pa.Table.from_pylist([row(i) for i in range(3)], schema=arrow_schema())
    table = table.drop_columns(["batch_images", "chosen_taus", *PROMPT]).append_column("latency_s", pa.array([0.5] * 3))
    table = table.replace_schema_metadata({"mulosd.schema": "0"})
    path = chunk_path(cell, 0)
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, write_page_checksum=True)
    data = path.read_bytes()
    entry = {"rows": 3, "bytes": len(data), "sha256": sha256_hex(data), "first": "toy/p0/0", "last": "toy/p2/0"}
    publish_json(cell / "cell.json", {"config": {"schema": 0}})
    publish_json(cell / "manifest.json", {"schema": 0, "files": {path.name: entry}})


def test_version_0_is_read_verified_and_exported_as_todays(tmp_path: Path) -> None:
    import datasets

    cell = tmp_path / "cells" / "old"
    write_v0(cell)
    before = chunk_path(cell, 0).read_bytes()
    (rows,) = iter_cell(cell)
    assert tuple(rows[0]) == COLUMNS
    assert [r["batch_images"] for r in rows] == [None] * 3
    expected = [{**row(i), "batch_images": None, "chosen_taus": None} for i in range(3)]
    assert rows == expected
    assert read_rows(chunk_path(cell, 0), columns=["seed"]) == [{"seed": r["seed"]} for r in expected]
    assert read_manifest(cell)["chunk-00000.parquet"].failed == 0
    assert verify.verify_store(tmp_path) == []
    assert export_dataset([cell], tmp_path / "out") == 3
    assert datasets.load_from_disk(str(tmp_path / "out"))[2]["image"].size == (10, 6)
    assert chunk_path(cell, 0).read_bytes() == before
    data = bytearray(before)
    data[300] ^= 1
    chunk_path(cell, 0).write_bytes(data)
    assert verify.verify_store(tmp_path) != []


def test_version_1_proves_itself_is_read_and_lies_beside_todays(tmp_path: Path) -> None:
    """A run continues such a cell: old chunks without chosen taus, new ones with them, one manifest."""
    later = ("chosen_taus", *PROMPT)
    old = [{name: value for name, value in row(i).items() if name not in later} for i in range(3)]
    table = pa.Table.from_pylist(old, schema=pa.schema([f for f in arrow_schema() if f.name not in later]))
    names = table.column_names
    proof = {"mulosd.cell": "c", "mulosd.rows_sha256": rows_digest(table.to_pylist(), names)}
    cell = tmp_path / "cells" / "c"
    path = chunk_path(cell, 0)
    path.parent.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({"mulosd.schema": "1", **proof}), path, write_page_checksum=True)
    data = path.read_bytes()
    verify.check_proof(data, path, "c")
    rows = read_rows(path)
    assert rows == [{**row(i), "chosen_taus": None} for i in range(3)]
    new = {**row(3), "chosen_taus": [0.25, 0.1]}
    entries = {path.name: entry_of(rows, data), "chunk-00001.parquet": write_chunk(chunk_path(cell, 1), [new])}
    publish_json(cell / "cell.json", {})
    write_manifest(cell, entries)
    assert verify.verify_cell(cell) == []
    assert [r["chosen_taus"] for chunk in iter_cell(cell) for r in chunk] == [None, None, None, [0.25, 0.1]]
    publish_json(cell / "manifest.json", {**read_json(cell / "manifest.json"), "schema": 1})
    assert read_manifest(cell) == entries
    forged = {**proof, "mulosd.rows_sha256": rows_digest(rows)}
    pq.write_table(table.replace_schema_metadata({"mulosd.schema": "1", **forged}), path, write_page_checksum=True)
    with pytest.raises(DataError, match="does not match its own digest"):
        verify.check_proof(path.read_bytes(), path, "c")


def test_version_2_says_nothing_of_what_was_read(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([row(0)], schema=arrow_schema()).drop_columns(list(PROMPT))
    path = tmp_path / "chunk.parquet"
    pq.write_table(table.replace_schema_metadata({"mulosd.schema": "2"}), path, write_page_checksum=True)
    (old,) = read_rows(path)
    assert old == {**row(0), **dict.fromkeys(PROMPT)}
    new = {**row(0), **prompt_columns(PromptTokens(3, 2, 1))}
    write_chunk(tmp_path / "new.parquet", [new])
    assert read_rows(tmp_path / "new.parquet") == [new]
    assert [new[name] for name in PROMPT] == [3, 2, 1]


@pytest.mark.parametrize("version", ["4", "-1", "one"])
def test_a_newer_format_is_refused(version: str) -> None:
    with pytest.raises(DataError, match="this program reads 0 to 3"):
        version_of(pa.schema([], metadata={"mulosd.schema": version}), Path("c.parquet"))


def test_a_sample_twice_fails_the_load_and_the_export(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    entries = read_manifest(cell)
    entries["chunk-00001.parquet"] = write_chunk(chunk_path(cell, 1), [row(0)])
    write_manifest(cell, entries)
    for columns in (None, ["seed"], ["sample_id"]):
        with pytest.raises(DataError, match="holds sample toy/p0/0 a second time"):
            list(iter_cell(cell, columns=columns))
    with pytest.raises(DataError, match="a second time"):
        check_export([cell], tmp_path / "out")
    with pytest.raises(DataError, match="a second time"):
        check_unique([row(1), row(1)], set(), tmp_path)


def damage(path: Path, position: int = 500) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 8
    path.write_bytes(data)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_sound_cell_needs_no_repair(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    before = tree(tmp_path)
    assert repair_cell(cell) == []
    assert tree(tmp_path) == before


def test_repair_moves_a_damaged_chunk_away(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    path = chunk_path(cell, 1)
    damage(path)
    before = tree(tmp_path)
    (planned,) = repair_cell(cell, dry_run=True)
    assert tree(tmp_path) == before
    (action,) = repair_cell(cell)
    assert (action.path, action.text) == (planned.path, planned.text) == (path, action.text)
    assert "moved to quarantine/" in str(action)
    assert (cell / "quarantine" / "images_chunk-00001.parquet.0").read_bytes() == before[
        str(path.relative_to(tmp_path))
    ]
    assert list(read_manifest(cell)) == ["chunk-00000.parquet"]
    assert verify.verify_cell(cell) == []
    (item,) = leftovers(cell)
    item.remove()
    assert not (cell / "quarantine").exists()


def test_repair_keeps_what_a_stopped_run_published(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    path = chunk_path(cell, 1)
    write_chunk(path, [row(2), row(3), row(4)], cell_key=cell.name)  # grown, and not recorded
    (action,) = repair_cell(cell)
    assert "the next run records it" in str(action)
    assert path.exists()
    assert list(read_manifest(cell)) == ["chunk-00000.parquet"]
    write_chunk(path, [row(2)], cell_key="another")
    (action,) = repair_cell(cell)
    assert "moved to quarantine/" in str(action)


@pytest.mark.parametrize("name", ["cell.json", "manifest.json"])
def test_repair_moves_damaged_records_away(tmp_path: Path, name: str) -> None:
    cell = make_cell(tmp_path)
    damage(cell / name, 40)
    assert [a.path for a in repair_cell(cell)] == [cell / name]
    assert not (cell / name).exists()
    assert len(list((cell / "quarantine").iterdir())) == 1
    assert all("missing" in str(a) or "the next run records it" in str(a) for a in repair_cell(cell))


def test_repair_moves_damaged_scores_away(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    folder = cell / "scores" / "mean-abc"
    publish_bytes(folder / "chunk-00000.state", b"state")
    files: dict[str, Any] = {"chunk-00000.state": {"sha256": sha256_hex(b"state")}}
    publish_json(folder / "manifest.json", {"files": files})
    publish_json(folder / "metrics.json", {})
    damage(folder / "chunk-00000.state", 2)
    repair_cell(cell)
    assert read_json(folder / "manifest.json") == {"files": {}}
    assert verify.verify_cell(cell) == []


def test_temp_files_are_found(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    temp = cell / "images" / ".chunk-00000.parquet.abc.tmp"
    temp.write_bytes(b"half")
    journal = cell / ".mlflow.db.abc.tmp-journal"
    journal.write_bytes(b"half")
    assert {item.path for item in leftovers(cell)} == {temp, journal}
    assert list(leftovers(cell, stale_s=60.0)) == []
    assert verify.verify_cell(cell) == []


@pytest.mark.parametrize("refusal", [None, errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_the_first_writer_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None) -> None:
    if refusal:
        without_hard_links(monkeypatch, refusal)
    path = tmp_path / "a"
    assert publish_over(path, b"one", None)
    assert not publish_over(path, b"two", None)
    assert not publish_over(path, b"two", sha256_hex(b"zero"))
    assert path.read_bytes() == b"one"
    assert publish_over(path, b"two", sha256_hex(b"one"))
    assert path.read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_rename_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    without_hard_links(monkeypatch)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        publish_over(tmp_path / "a", b"one", None)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def of_files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", of_files_only)
    publish_bytes(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"


def test_a_chunk_is_not_published_over_another_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    assert publish_chunk(path, [row(0)], cell_key="a", base=None) is not None
    assert publish_chunk(path, [row(1)], cell_key="a", base=None) is None
    assert read_rows(path)[0]["sample_id"] == "toy/p0/0"


def test_every_changed_byte_of_a_bench_run_is_found(tmp_path: Path) -> None:
    from mulosd.stage.write import write_table

    make_cell(tmp_path)
    folder = tmp_path / "bench" / "run"
    publish_json(folder / "bench.json", {"rows_sha256": write_table(folder / "rows.parquet", [{"a": 1.5}])})
    publish_json(tmp_path / "sweeps" / "s" / "sweep.json", {"name": "s"})
    assert verify.verify_store(tmp_path) == []
    for path in (folder / "rows.parquet", folder / "bench.json", tmp_path / "sweeps" / "s" / "sweep.json"):
        original = path.read_bytes()
        for position in range(0, len(original), 7):
            damage(path, position)
            assert [p.path for p in verify.verify_store(tmp_path)] == [path], position
            path.write_bytes(original)
