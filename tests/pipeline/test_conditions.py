"""The condition stage: each prompt is encoded once, whatever decodes it and however often a run is stopped."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mulosd.errors import DataError
from mulosd.files.publish import sha256_hex
from mulosd.models.condition import Condition
from mulosd.stage.conditions import condition_entries, read_conditions
from mulosd.stage.manifest import FileEntry, write_manifest
from mulosd.stage.prune import Removable
from mulosd.stage.read import iter_cell, read_table
from mulosd.stage.verify import verify_store
from mulosd.text.encoder import Encoded
from mulosd.types import PromptTokens
from pipelines.latency.bench import run_bench
from pipelines.plan.build import build_plan
from pipelines.run import driver
from pipelines.run.driver import RunFailed, run_sweep
from pipelines.store.layout import Store
from pipelines.store.upkeep import prune_store, repair_store
from pipelines.work.encode import encode_chunk
from pipelines.work.tasks import EncodeTask, TargetSpec
from tests import fakes
from tests.fakes import toy_sweep

PROMPTS = {f"prompt {i}" for i in range(10)}


@pytest.fixture
def encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """How often each prompt was encoded so far."""
    path = tmp_path / "encoded.txt"
    monkeypatch.setenv(fakes.ENCODE_FILE, str(path))
    return lambda: (
        Counter(line.split(" ", 1)[1] for line in path.read_text().splitlines()) if path.exists() else Counter()
    )


def folder_of(store: Path) -> Path:
    (folder,) = (store / "conditions").iterdir()
    return folder


def staged(store: Path) -> list[dict[str, object]]:
    folder = folder_of(store)
    return [row for name, entry in condition_entries(folder).items() for row in read_conditions(folder / name, entry)]


def tokens(store: Path) -> dict[str, list[list[int]]]:
    return {
        cell.name: [row["token_ids"] for rows in iter_cell(cell) for row in rows]
        for cell in sorted((store / "cells").iterdir())
    }


def test_two_cells_encode_once(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    out = tmp_path / "store"
    report = run_sweep(toy_sweep(target="fake-t5"), out=out)
    assert (report.decoded, report.failed) == (30, 0)
    assert encoded() == Counter(PROMPTS)
    assert [row["batch_prompts"] for row in staged(out)] == [3] * 9 + [1]
    other = toy_sweep(target="fake-t5", name="other", methods=[{"method": "draft-only"}], images_per_prompt=2)
    assert run_sweep(other, out=out).decoded == 20
    assert encoded() == Counter(PROMPTS)
    assert verify_store(out) == []


def test_a_target_without_an_encoder_has_no_stage(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    run_sweep(toy_sweep(), out=tmp_path / "store")
    assert not (tmp_path / "store" / "conditions").exists()
    assert encoded() == Counter()


def test_an_encoder_that_samples_runs_per_image(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    out = tmp_path / "store"
    run_sweep(toy_sweep(target="fake-llm", images_per_prompt=2), out=out)
    assert encoded() == Counter(dict.fromkeys(PROMPTS, 2))
    assert len({row["seed"] for row in staged(out)}) == 20
    assert len({bytes(row["values"]) + bytes(row["shape"]) for row in staged(out)}) > 10  # type: ignore[call-overload]


def test_ids_that_an_encoder_left_out_are_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_sweep(toy_sweep(target="fake-t5"), out=tmp_path)
    counts = {row["prompt"]: row["padded_ids"] for row in staged(tmp_path)}
    assert counts == {f"prompt {i}": 2 * (i in (2, 5)) for i in range(10)}
    assert "conditions of fake-t5 chunk-00000: 2 of 10 are short, 4 ids filled with 0" in caplog.text


def test_growing_limits_encode_what_is_new(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    for limit in (2, 7, None):
        run_sweep(toy_sweep(target="fake-t5"), out=tmp_path / "grown", limit=limit)
    assert encoded() == Counter(PROMPTS)
    run_sweep(toy_sweep(target="fake-t5"), out=tmp_path / "whole")
    assert tokens(tmp_path / "grown") == tokens(tmp_path / "whole")


def test_stopped_between_encoding_and_decoding(
    tmp_path: Path, encoded: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(fakes, "load_target", None)
        with pytest.raises(TypeError):
            run_sweep(toy_sweep(target="fake-t5"), out=out)
    assert encoded() == Counter(PROMPTS)
    assert run_sweep(toy_sweep(target="fake-t5"), out=out).decoded == 30
    assert encoded() == Counter(PROMPTS)


def test_stopped_between_publishing_and_recording(
    tmp_path: Path, encoded: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.run.conditions.write_manifest", None)
        with pytest.raises(TypeError):
            run_sweep(toy_sweep(target="fake-t5"), out=out)
    assert [path.name for path in folder_of(out).glob("*.parquet")] == ["chunk-00000.parquet"]
    assert run_sweep(toy_sweep(target="fake-t5"), out=out).decoded == 30
    assert encoded() == Counter(dict.fromkeys(PROMPTS, 2))  # an unrecorded chunk is made anew
    assert verify_store(out) == []


def test_a_damaged_chunk_is_refused_and_repaired(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    out = tmp_path / "store"
    run_sweep(toy_sweep(target="fake-t5"), out=out)
    before = tokens(out)
    path = folder_of(out) / "chunk-00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert [problem.path for problem in verify_store(out)] == [path]
    assert [action.path for action in repair_store(Store(out), dry_run=True)] == [path]
    other = toy_sweep(target="fake-t5", methods=[{"method": "draft-only"}])
    with pytest.raises(DataError, match=r"does not match its manifest.*delete the file and run the sweep again"):
        run_sweep(other, out=out)
    assert path.exists()
    assert path in [action.path for action in repair_store(Store(out))]
    assert not path.exists()
    assert run_sweep(other, out=out).decoded == 10
    assert encoded() == Counter(dict.fromkeys(PROMPTS, 2))
    assert before.items() <= tokens(out).items()
    assert verify_store(out) == []


def test_a_prompt_that_cannot_be_encoded_is_a_failed_row(
    tmp_path: Path, encoded: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, fail = tmp_path / "store", tmp_path / "fail.txt"
    fail.write_text("prompt 4")
    monkeypatch.setenv(fakes.FAIL_FILE, str(fail))
    with pytest.raises(RunFailed, match=r"toy/004/0.*has no condition: RuntimeError: cannot read 'prompt 4'"):
        run_sweep(toy_sweep(target="fake-t5"), out=out)
    assert encoded() == Counter(PROMPTS - {"prompt 4"})
    fail.write_text("")
    assert run_sweep(toy_sweep(target="fake-t5"), out=out).failed == 0
    assert encoded() == Counter(PROMPTS)
    assert verify_store(out) == []


def test_a_task_that_lost_its_worker_to_memory_encodes_half_batches(tmp_path: Path) -> None:
    spec = TargetSpec("tests.fakes:load_encoder", "fake-t5", "cpu", "float32")
    items = tuple((str(i), f"prompt {i}", None) for i in range(4))
    path = tmp_path / "chunk-00000.parquet"
    entry = encode_chunk(EncodeTask(spec, items, 4, str(path), is_halved=True), fakes.FakeEncoder("fake-t5")).entry
    assert [row["batch_prompts"] for row in read_conditions(path, entry)] == [2] * 4


def test_nothing_is_loaded_when_all_images_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(target="fake-t5"), out=tmp_path)
    monkeypatch.setattr(fakes, "load_encoder", None)
    monkeypatch.setattr(driver, "open_executor", None)
    assert run_sweep(toy_sweep(target="fake-t5"), out=tmp_path).cached == 30


def test_a_bench_encodes_before_it_times(
    tmp_path: Path, encoded: Callable[[], Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    @contextmanager
    def timing() -> Iterator[None]:
        seen.append(encoded().total())
        yield

    monkeypatch.setattr("pipelines.latency.bench.timing", timing)
    sweep = toy_sweep(
        target="fake-t5", methods=[{"method": "ar"}, {"method": "mulosd"}], bench={"prompts": 3, "warmup": 1}
    )
    report = run_bench(sweep, out=tmp_path / "store")
    assert seen == [4]
    assert encoded() == Counter({f"prompt {i}": 1 for i in range(4)})
    rows = read_table(report.folder / "rows.parquet")
    assert len(rows) == 6
    assert all(row["encode_s"] > 0 and row["encode_prompts"] == 3 for row in rows)
    run_sweep(sweep, out=tmp_path / "store")
    assert encoded() == Counter(PROMPTS)


def test_prune_leaves_the_conditions_of_finished_sweeps(tmp_path: Path, encoded: Callable[[], Counter[str]]) -> None:
    """Two chunks of one encoder, of which a finished sweep used the first, and the folder of another encoder."""
    first, second, third = (
        toy_sweep(target=target, methods=[{"method": method}], name=name)
        for name, target, method in (("a", "fake-t5", "ar"), ("b", "fake-t5", "draft-only"), ("c", "fake-llm", "ar"))
    )
    out = tmp_path / "store"
    run_sweep(first, out=out, limit=3)
    kept = folder_of(out)
    run_sweep(second, out=out)
    run_sweep(third, out=out, limit=2)
    (other,) = set((out / "conditions").iterdir()) - {kept}
    for sweep in (second, third):
        (out / "sweeps" / build_plan(sweep).sweep_key / "sweep.json").unlink()
    store = Store(out)

    def gone(dry_run: bool) -> set[Path]:
        found = prune_store(store, unused=True, dry_run=dry_run)
        return {item.path for item in found if isinstance(item, Removable) and "conditions" in item.path.parts}

    expected = {kept / "chunk-00001.parquet", other}
    assert gone(dry_run=True) == expected
    assert all(path.exists() for path in expected)
    with store.lock_cell(build_plan(first).cells[0].key):
        assert gone(dry_run=False) == set()  # the other run may need any of them
    assert gone(dry_run=False) == expected
    assert not any(path.exists() for path in expected)
    assert verify_store(out) == []
    before = encoded()
    assert run_sweep(first, out=out, limit=3).cached == 3
    assert encoded() == before
    run_sweep(second, out=out)
    assert encoded() - before == Counter(PROMPTS - {f"prompt {i}" for i in range(3)})


def test_keys_of_cells_do_not_depend_on_the_stage(tmp_path: Path) -> None:
    """The encoder's weights are part of the card's content hash; the stage itself adds nothing to a key."""
    cells = build_plan(toy_sweep(target="fake-t5")).cells
    assert all("condition" not in key for cell in cells for key in cell.config)


def test_features_that_are_not_finite_are_an_error_of_their_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As T5 gives them in float16; the prompts of the same call keep theirs."""
    real = fakes.FakeEncoder.encode

    def encode(self: fakes.FakeEncoder, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        found = real(self, prompts, seeds)
        values = found.condition.values.float()
        values[[prompt == "prompt 3" for prompt in prompts], -1] = float("nan")
        failed = tuple(b for b, prompt in enumerate(prompts) if prompt == "prompt 7")  # as an LLM says
        return Encoded(Condition(values, found.condition.mask), found.padded_ids, failed)

    monkeypatch.setattr(fakes.FakeEncoder, "encode", encode)
    with pytest.raises(RunFailed, match=r"2 of 10 images failed.* numbers of the encoder are not finite"):
        run_sweep(toy_sweep(target="fake-t5", methods=[{"method": "ar"}]), out=tmp_path)
    failed = {row["prompt"]: row["batch_prompts"] for row in staged(tmp_path) if row["error"]}
    assert failed == {"prompt 3": None, "prompt 7": None}
    assert {row["batch_prompts"] for row in staged(tmp_path) if not row["error"]} == {3, 1}


def test_what_was_read_of_a_staged_prompt_is_in_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = fakes.FakeEncoder.encode

    def encode(self: fakes.FakeEncoder, prompts: Sequence[str], seeds: Sequence[int]) -> Encoded:
        read = tuple(PromptTokens(12, cut=int(prompt[-1])) for prompt in prompts)
        return replace(real(self, prompts, seeds), tokens=read)

    monkeypatch.setattr(fakes.FakeEncoder, "encode", encode)
    run_sweep(toy_sweep(target="fake-t5", methods=[{"method": "ar"}]), out=tmp_path)
    assert caplog.text.count("fake-t5: 9 prompts were not read whole: 9 cut to the encoder's length") == 1
    (cell,) = (tmp_path / "cells").iterdir()
    rows = [row for chunk in iter_cell(cell) for row in chunk]
    assert [row["prompt_cut"] for row in rows] == list(range(10))
    # Conditions of 0.1.0 do not say it.
    (path,) = folder_of(tmp_path).glob("*.parquet")
    table = pq.read_table(path).drop_columns(["prompt_tokens", "prompt_unknown", "prompt_cut"])
    pq.write_table(table, path)
    data = path.read_bytes()
    entry = FileEntry(10, len(data), sha256_hex(data), 0, "", "")
    write_manifest(folder_of(tmp_path), {path.name: entry})
    run_sweep(toy_sweep(target="fake-t5", methods=[{"method": "zipar"}]), out=tmp_path)
    cells = list((tmp_path / "cells").iterdir())
    assert {row["prompt_cut"] for cell in cells for chunk in iter_cell(cell) for row in chunk} == {None, *range(10)}
