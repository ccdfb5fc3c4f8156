"""The stage: rows survive a round trip, Hugging Face sees pictures, and any changed byte is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.files.publish import canonical_json, publish_bytes, publish_json, read_json
from mulosd.stage import read, verify
from mulosd.stage.manifest import chunk_path, read_manifest, write_manifest
from mulosd.stage.schema import COLUMNS, StagedSample
from mulosd.stage.write import encode_png, sample_row, write_table
from mulosd.types import COUNTERS, Decoded, DecodeStats
from tests.unit.stage.rows import write_chunk


def decoded(seed: int = 0, grid: tuple[int, int] = (3, 5)) -> Decoded:
    rng = np.random.default_rng(seed)
    return Decoded(
        tokens=rng.integers(0, 100, grid, dtype=np.int32),
        image=rng.integers(0, 256, (6, 10, 3), dtype=np.uint8),
        status=rng.integers(0, 4, grid, dtype=np.uint8),
        stats=DecodeStats(
            **{name: i + seed for i, name in enumerate(COUNTERS)},
            chosen_taus=[0.1, 1 / 3],
            time_verify_s=1.5,
            peak_mib=3.0,
        ),
    )


def sample(index: int = 0, **changes: Any) -> StagedSample:
    settings: dict[str, Any] = {
        "sample_id": f"toy/p{index}/0",
        "benchmark": "toy",
        "prompt_id": f"p{index}",
        "prompt": "a red circle – très joli",
        "image_index": 0,
        "seed": 2**63 - 1 - index,
        "metadata": {"tag": "colors", "include": [{"class": "circle", "count": 1}]},
    }
    if "error" not in changes:
        settings["decoded"] = decoded(index)
    return StagedSample(**{**settings, **changes})


def make_cell(root: Path, chunks: int = 2, rows: int = 2) -> Path:
    cell = root / "cells" / "0123456789abcdef"
    publish_json(cell / "cell.json", {"config": {}})
    entries = {}
    for index in range(chunks):
        path = chunk_path(cell, index)
        entries[path.name] = write_chunk(path, [sample_row(sample(index * rows + i)) for i in range(rows)])
    write_manifest(cell, entries)
    return cell


def test_a_row_survives_the_round_trip(tmp_path: Path) -> None:
    entry = write_chunk(tmp_path / "c.parquet", [sample_row(sample(3)), sample_row(sample(4, error="boom"))])
    good, failed = read.read_rows(tmp_path / "c.parquet")
    expected = decoded(3)
    assert tuple(good) == COLUMNS
    np.testing.assert_array_equal(read.image_array(good), expected.image)
    np.testing.assert_array_equal(read.status_array(good), expected.status)
    assert good["token_ids"] == expected.tokens.ravel().tolist()
    assert {name: good[name] for name in COUNTERS} == {name: getattr(expected.stats, name) for name in COUNTERS}
    assert good["chosen_taus"] == expected.stats.chosen_taus == [0.1, 1 / 3]
    assert failed["chosen_taus"] is None
    assert good["seed"] == 2**63 - 4
    assert good["prompt"] == "a red circle – très joli"
    assert read.metadata_of(good)["include"] == [{"class": "circle", "count": 1}]
    assert failed["error"] == "boom"
    assert failed["image"] is None
    assert [failed[name] for name in COUNTERS] == [None] * len(COUNTERS)
    assert read.image_array(failed) is read.status_array(failed) is failed["token_ids"] is None
    assert (entry.rows, entry.failed, entry.first, entry.last) == (2, 1, "toy/p3/0", "toy/p4/0")


def test_rows_hold_no_time() -> None:
    assert not [name for name in COLUMNS if "time" in name or name.endswith("_s") or "latency" in name]


def test_equal_rows_give_equal_bytes_after_a_round_trip(tmp_path: Path) -> None:
    first = write_chunk(tmp_path / "a.parquet", [sample_row(sample(i)) for i in range(3)])
    again = write_chunk(tmp_path / "b.parquet", read.read_rows(tmp_path / "a.parquet"))
    assert first == again


def test_images_are_stored_plainly_with_page_checksums(tmp_path: Path) -> None:
    write_chunk(tmp_path / "a.parquet", [sample_row(sample())])
    columns = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0)
    compression = {columns.column(i).path_in_schema: columns.column(i).compression for i in range(columns.num_columns)}
    assert compression["image.bytes"] == "UNCOMPRESSED"
    assert {codec for name, codec in compression.items() if name != "image.bytes"} == {"ZSTD"}


def test_huggingface_reads_pictures(tmp_path: Path) -> None:
    import datasets

    write_chunk(tmp_path / "a.parquet", [sample_row(sample(0)), sample_row(sample(1, error="boom"))])
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=cache)
    np.testing.assert_array_equal(np.asarray(loaded[0]["image"]), decoded(0).image)
    assert loaded[0]["image"].__class__.__module__.startswith("PIL.")
    assert loaded[1]["image"] is None
    assert loaded[0]["token_ids"] == decoded(0).tokens.reshape(-1).tolist()


def test_export_loads_from_disk(tmp_path: Path) -> None:
    import datasets

    from mulosd.stage.export import export_dataset

    cell = make_cell(tmp_path)
    assert export_dataset([cell], tmp_path / "out") == 4
    loaded = datasets.load_from_disk(str(tmp_path / "out"))
    np.testing.assert_array_equal(np.asarray(loaded[3]["image"]), decoded(3).image)
    assert set(loaded["cell_key"]) == {cell.name}
    with pytest.raises(ConfigError, match="exists already"):
        export_dataset([cell], tmp_path / "out")
    with pytest.raises(DataError, match="nothing to export"):
        export_dataset([], tmp_path / "other")


def test_a_sound_cell_has_no_problem(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    assert verify.verify_cell(cell) == []
    assert verify.verify_store(tmp_path) == []
    assert [len(rows) for rows in read.iter_cell(cell)] == [2, 2]


def test_every_changed_byte_of_a_chunk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(tmp_path, chunks=1, rows=1)
    path = chunk_path(cell, 0)
    entry = read_manifest(cell)[path.name]
    data = bytearray(path.read_bytes())
    missed = []
    monkeypatch.setattr(verify, "read_bytes", lambda path: bytes(data))  # thousands of writes would take long
    assert verify.check_entry(path, entry) == data
    for position in range(len(data)):
        data[position] ^= 1
        try:
            verify.check_entry(path, entry)
            missed.append(position)
        except DataError:
            pass
        data[position] ^= 1
    assert missed == []


@pytest.mark.parametrize("position", [0, 700, -200, -1])
def test_verify_reports_a_changed_byte(tmp_path: Path, position: int) -> None:
    cell = make_cell(tmp_path)
    path = chunk_path(cell, 1)
    data = bytearray(path.read_bytes())
    data[position] ^= 16
    path.write_bytes(data)
    (problem,) = verify.verify_store(tmp_path)
    assert problem.path == path
    assert "does not match its manifest" in str(problem)


@pytest.mark.parametrize("name", ["cell.json", "manifest.json"])
def test_every_changed_byte_of_the_records_is_found(tmp_path: Path, name: str) -> None:
    cell = make_cell(tmp_path, chunks=1, rows=1)
    original = (cell / name).read_bytes()
    missed = []
    for position in range(len(original)):
        data = bytearray(original)
        data[position] ^= 1
        (cell / name).write_bytes(data)
        if not verify.verify_cell(cell):
            missed.append(position)
    assert missed == []


def test_a_page_checksum_error_is_one_sentence_without_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_chunk(path, [sample_row(sample())])
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 255  # inside the picture, where no length or footer is hurt
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged Parquet file"):
        read.read_rows(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_truncated_files_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged Parquet file") as caught:
        read.read_rows(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_foreign_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sample_id": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="schema version none"):
        read.read_rows(tmp_path / "a.parquet")


def replace_chunk(cell: Path, staged: list[dict[str, Any]], **changes: Any) -> None:
    """Write other rows into chunk 1 with a manifest that agrees with the file's bytes."""
    from dataclasses import replace

    entries = read_manifest(cell)
    path = chunk_path(cell, 1)
    entries[path.name] = replace(write_chunk(path, staged), **changes)
    write_manifest(cell, entries)


def test_verify_finds_repeated_samples(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    replace_chunk(cell, [sample_row(sample(0))])
    assert "repeats sample toy/p0/0" in str(verify.verify_cell(cell)[0])


def test_verify_finds_wrong_pixels(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    row = sample_row(sample(2))
    row["image"]["bytes"] = encode_png(decoded(9).image)
    replace_chunk(cell, [row])
    assert "do not match their digest" in str(verify.verify_cell(cell)[0])


def test_verify_finds_wrong_counts(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    replace_chunk(cell, [sample_row(sample(2))], rows=5, failed=1)
    texts = [str(problem) for problem in verify.verify_cell(cell)]
    assert any("1 rows, its manifest says 5" in text for text in texts)
    assert any("failed rows" in text for text in texts)


def test_verify_finds_leftovers_and_missing_files(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    write_chunk(chunk_path(cell, 7), [sample_row(sample(70))])
    chunk_path(cell, 0).unlink()
    texts = "\n".join(map(str, verify.verify_cell(cell)))
    assert "chunk-00007.parquet is not in the manifest" in texts
    assert "chunk-00000.parquet cannot be read" in texts
    (cell / "manifest.json").unlink()
    assert "has no manifest.json" in str(verify.verify_cell(cell)[-1])


def test_verify_finds_a_changed_score_state(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    folder = cell / "scores" / "mean-abc"
    publish_bytes(folder / "chunk-00000.state", b"state")
    digest = hashlib.sha256(b"state").hexdigest()
    publish_json(folder / "manifest.json", {"files": {"chunk-00000.state": {"sha256": digest}}})
    publish_json(folder / "metrics.json", {})
    assert verify.verify_cell(cell) == []
    (folder / "chunk-00000.state").write_bytes(b"stale")
    assert "does not match its manifest" in str(verify.verify_cell(cell)[0])
    (folder / "metrics.json").unlink()
    assert "metrics.json cannot be read" in str(verify.verify_cell(cell)[0])


def test_verify_needs_something_to_verify(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no cells"):
        verify.verify_store(tmp_path)


def test_a_manifest_cannot_name_foreign_paths(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    value = read_json(cell / "manifest.json")
    value["files"]["../../etc/passwd"] = value["files"].pop("chunk-00000.parquet")
    publish_json(cell / "manifest.json", value)
    with pytest.raises(DataError, match="not a chunk file"):
        read_manifest(cell)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    publish_json(cell / "manifest.json", {**read_json(cell / "manifest.json"), "schema": 99})
    with pytest.raises(DataError, match="schema version 99"):
        read_manifest(cell)


def test_publish_leaves_the_old_file_and_no_temp_on_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bytes(tmp_path / "a.json", b"old")

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        publish_bytes(tmp_path / "a.json", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"old")]


def test_publish_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        publish_bytes(tmp_path / "file" / "a.json", b"new")


def test_canonical_json_refuses_what_has_no_number() -> None:
    assert canonical_json({"b": 1, "a": [0.1, "é"]}) == '{"a":[0.1,"é"],"b":1}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"tau": float("nan")})


@pytest.mark.parametrize("content", ["{}", "[]", "nonsense", json.dumps({"value": 1, "sha256": "0"})])
def test_read_json_refuses_what_publish_json_did_not_write(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match="damaged or was edited"):
        read_json(tmp_path / "a.json")


def test_bad_samples_are_bugs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        sample(0, error="boom", decoded=decoded())
    with pytest.raises(ValueError, match="int64"):
        sample(0, seed=2**63)
    with pytest.raises(ValueError, match="unique sample ids"):
        write_chunk(tmp_path / "a.parquet", [sample_row(sample(0)), sample_row(sample(0))])
    with pytest.raises(ValueError, match="unique sample ids"):
        write_chunk(tmp_path / "a.parquet", [])
    with pytest.raises(ValueError, match="uint8"):
        encode_png(np.zeros((2, 2, 3), np.float32))
    wrong = decoded()
    wrong.status = np.zeros((2, 2), np.uint8)
    with pytest.raises(ValueError, match="status must be"):
        sample_row(sample(0, decoded=wrong))


def test_plain_tables(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", [{"a": 1, "b": 0.5}, {"a": 2, "b": None}])
    assert read.read_table(tmp_path / "t.parquet") == [{"a": 1, "b": 0.5}, {"a": 2, "b": None}]
    with pytest.raises(DataError, match="missing or damaged"):
        read.read_table(tmp_path / "missing.parquet")
