"""Running sweeps: continue, extend, do nothing, refuse; failures are rows that the next run tries again."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError, DataError, EnvironmentProblem, UserError
from mulosd.files.publish import publish_json, read_json
from mulosd.methods import SamplerKnobs
from mulosd.stage.manifest import chunk_path, read_manifest
from mulosd.stage.read import iter_cell
from mulosd.stage.verify import verify_store
from mulosd.types import Decoded, PromptTokens
from pipelines.executors.local import InProcessExecutor
from pipelines.plan.build import build_plan
from pipelines.run import driver
from pipelines.run.driver import RunFailed, run_sweep
from pipelines.run.progress import Progress
from pipelines.store.layout import Store
from pipelines.store.results import collect, pictures
from pipelines.work.tasks import Outcome
from tests import fakes
from tests.fakes import toy_sweep


def tree(root: Path) -> dict[str, bytes]:
    """All published files of the cells but the records of where they were made."""
    skipped = (".lock", "cell.json")
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "cells").rglob("*"))
        if path.is_file() and path.name not in skipped
    }


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it with the texts of prompts that cannot be decoded from now on."""
    path = tmp_path / "fail.txt"
    monkeypatch.setenv(fakes.FAIL_FILE, str(path))

    def write(*texts: str) -> None:
        path.write_text("\n".join(texts))

    return write


def first_cell(store: Path) -> Path:
    return store / "cells" / build_plan(toy_sweep()).cells[0].key


def test_run_then_nothing_left(tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = run_sweep(toy_sweep(), out=tmp_path, progress=seen.append)
    assert (report.images, report.decoded, report.cached, report.failed) == (30, 30, 0, 0)
    assert report.scores_done == 3
    assert [p.done for p in seen if p.stage == "decode"] == [0, 4, 8, 10, 14, 18, 20, 24, 28, 30]
    before = tree(tmp_path)
    seen.clear()
    again = run_sweep(toy_sweep(), out=tmp_path, progress=seen.append)
    assert (again.cached, again.decoded, again.scores_cached, again.scores_done) == (30, 0, 3, 0)
    assert [(p.stage, p.done, p.total, p.cached) for p in seen] == [("decode", 30, 30, 30), ("score", 9, 9, 9)]
    assert tree(tmp_path) == before
    assert verify_store(tmp_path) == []


def test_nothing_left_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    monkeypatch.setattr(fakes, "load_target", None)
    monkeypatch.setattr(driver, "open_executor", None)
    assert run_sweep(toy_sweep(), out=tmp_path).cached == 30


@pytest.mark.parametrize("steps", [(1, 3, None), (4, 5, 10), (7, 2, None)])
def test_growing_limits_end_where_one_run_ends(tmp_path: Path, steps: tuple[int | None, ...]) -> None:
    for limit in steps:
        run_sweep(toy_sweep(), out=tmp_path / "grown", limit=limit)
    run_sweep(toy_sweep(), out=tmp_path / "whole")
    grown, whole = tree(tmp_path / "grown"), tree(tmp_path / "whole")
    # metrics.json also keeps results on fewer chunks that are still there, with their scores per sample.
    assert whole.keys() <= grown.keys()
    assert all("/samples-" in name for name in grown.keys() - whole.keys())
    assert [name for name in whole if grown[name] != whole[name] and not name.endswith("metrics.json")] == []
    assert collect(tmp_path / "grown") == collect(tmp_path / "whole")


def test_a_grown_chunk_redoes_its_scores_only(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=5)
    seen: list[Progress] = []
    report = run_sweep(toy_sweep(), out=tmp_path, limit=8, progress=seen.append)
    # Chunk 0 is complete. Chunk 1 held one image of a batch of three: the batch is decoded whole.
    assert (report.cached, report.decoded) == (12, 12)
    assert next(p.cached for p in seen if p.stage == "score") == 3
    (row, *_) = collect(tmp_path)
    assert row.metrics["mean"]["n"] == len(row.counters["forwards_resample"]) == 8


def test_a_smaller_limit_reports_on_fewer_images(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    whole = collect(tmp_path)[0].metrics["mean"]
    report = run_sweep(toy_sweep(), out=tmp_path, limit=6)
    assert (report.images, report.decoded, report.cached) == (18, 0, 18)
    row = collect(tmp_path)[0]
    assert row.metrics["mean"]["n"] == len(row.counters["cycles"]) == 6
    assert run_sweep(toy_sweep(), out=tmp_path).decoded == 0
    assert collect(tmp_path)[0].metrics["mean"] == whole


class StopAfter(InProcessExecutor):
    """Ends like a killed process after some tasks, with the last chunk published but not recorded."""

    left = 4

    def map(self, tasks: Any) -> Iterator[Outcome]:
        for outcome in super().map(tasks):
            StopAfter.left -= 1
            if StopAfter.left < 0:
                raise KeyboardInterrupt
            yield outcome


def test_a_stopped_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.executors.choose.InProcessExecutor", StopAfter)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(toy_sweep(), out=tmp_path / "stopped")
    assert [p for p in verify_store(tmp_path / "stopped") if "is not in the manifest" in str(p)]
    report = run_sweep(toy_sweep(), out=tmp_path / "stopped")
    assert report.cached == 14 + 4  # three recorded chunks of cell 0, one of cell 1, and the published leftover
    run_sweep(toy_sweep(), out=tmp_path / "whole")
    assert tree(tmp_path / "stopped") == tree(tmp_path / "whole")


def test_work_done_while_waiting_for_the_lock_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Store.lock_cell
    waiting = [True]

    def lock_after_another_run(self: Store, cell_key: str) -> Any:
        if waiting:
            waiting.clear()
            run_sweep(toy_sweep(), out=tmp_path)
        return original(self, cell_key)

    monkeypatch.setattr(Store, "lock_cell", lock_after_another_run)
    report = run_sweep(toy_sweep(), out=tmp_path)
    assert (report.cached, report.decoded, report.scores_cached) == (30, 0, 3)


def test_an_unreadable_leftover_is_decoded_anew(tmp_path: Path) -> None:
    path = chunk_path(first_cell(tmp_path), 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1 half a file")
    assert run_sweep(toy_sweep(), out=tmp_path).decoded == 30
    assert verify_store(tmp_path) == []


def test_a_deleted_chunk_is_decoded_anew(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    before = tree(tmp_path)
    chunk_path(first_cell(tmp_path), 1).unlink()
    report = run_sweep(toy_sweep(), out=tmp_path)
    assert (report.decoded, report.scores_done) == (4, 0)
    assert tree(tmp_path) == before


def test_a_damaged_chunk_is_refused_before_any_work(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=4)
    path = chunk_path(first_cell(tmp_path), 0)
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 4
    path.write_bytes(data)
    before = tree(tmp_path)
    with pytest.raises(DataError, match=r"chunk-00000\.parquet does not match its manifest"):
        run_sweep(toy_sweep(), out=tmp_path)
    assert tree(tmp_path) == before


def test_a_chunk_of_other_seeds_is_refused(tmp_path: Path) -> None:
    run_sweep(toy_sweep(methods=[{"method": "ar"}], base_seed=1), out=tmp_path / "other", limit=3)
    (other,) = (tmp_path / "other" / "cells").iterdir()
    cell = first_cell(tmp_path / "mine")
    cell.mkdir(parents=True)
    (other / "images").rename(cell / "images")
    with pytest.raises(DataError, match="is a chunk of cell"):
        run_sweep(toy_sweep(), out=tmp_path / "mine")


def test_a_changed_setting_under_an_old_key_is_refused(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path, limit=1)
    path = first_cell(tmp_path) / "cell.json"
    content = read_json(path)
    content["config"]["batch_size"] = 99
    publish_json(path, content)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="batch_size is 99 in the stored cell and 3 in this sweep"):
        run_sweep(toy_sweep(), out=tmp_path)
    assert tree(tmp_path) == before


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="choose a writable folder with --out"):
        run_sweep(toy_sweep(), out=tmp_path / "file" / "store")

    def refuse(self: Path, data: bytes) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)  # a mode would not stop the superuser
    with pytest.raises(EnvironmentProblem, match="Read-only file system") as caught:
        run_sweep(toy_sweep(), out=tmp_path / "store")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "store" / "cells").exists()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(), out=tmp_path / "linked")
    fakes.without_hard_links(monkeypatch)
    assert run_sweep(toy_sweep(), out=tmp_path / "plain").decoded == 30
    assert tree(tmp_path / "plain") == tree(tmp_path / "linked")


def test_publishing_is_tried_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("pipelines.work.decode.decode_chunk", never)
    monkeypatch.setattr("pipelines.store.layout.publish_over", lambda *_: True)  # the second writer overwrote the first
    with pytest.raises(EnvironmentProblem, match="another file system"):
        run_sweep(toy_sweep(), out=tmp_path)


def test_failed_samples_are_rows_and_are_tried_again(tmp_path: Path, failing: Callable[..., None]) -> None:
    failing("prompt 5")
    with pytest.raises(RunFailed, match="3 of 30 images failed, max_failed allows 0; the first is toy/005/0") as caught:
        run_sweep(toy_sweep(), out=tmp_path / "a")
    assert isinstance(caught.value, UserError)
    assert caught.value.report is not None
    assert caught.value.report.failed == 3
    rows = [row for chunk in iter_cell(first_cell(tmp_path / "a")) for row in chunk]
    assert [(row["sample_id"], row["image"]) for row in rows if row["error"]] == [("toy/005/0", None)]
    assert next(row["error"] for row in rows if row["error"]) == "RuntimeError: cannot draw 'prompt 5'"
    assert not list((tmp_path / "a").glob("sweeps/*/sweep.json"))
    failing()
    report = run_sweep(toy_sweep(), out=tmp_path / "a")
    assert (report.failed, report.decoded) == (0, 9)  # the batch of three, in three cells
    run_sweep(toy_sweep(), out=tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_allowed_failures_are_missing_and_never_zero(tmp_path: Path, failing: Callable[..., None]) -> None:
    failing("prompt 5")
    sweep = toy_sweep(max_failed=3)
    report = run_sweep(sweep, out=tmp_path)
    assert report.failed == 3
    row = collect(tmp_path)[0]
    assert (row.metrics["mean"]["n"], row.metrics["mean"]["n_missing"]) == (9, 1)
    assert "toy/005/0" not in row.counters["cycles"]
    assert "toy/005/0" not in row.metrics["mean"]["per_sample"]
    assert len(pictures(tmp_path, row.cell_key)) == 9
    again = run_sweep(sweep, out=tmp_path)
    assert (again.failed, again.decoded, again.scores_cached) == (3, 9, 3)


def test_user_errors_of_a_worker_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise DataError("the weights are missing; fetch them.")

    monkeypatch.setattr(fakes.FakeTarget, "decode", refuse)
    with pytest.raises(DataError, match="the weights are missing"):
        run_sweep(toy_sweep(), out=tmp_path)


def test_a_decoder_that_returns_too_few_images_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.FakeTarget, "decode", lambda *a, **k: [])
    with pytest.raises(RunFailed, match="returned 0 images for 1 prompts"):
        run_sweep(toy_sweep(), out=tmp_path)


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    report = run_sweep(toy_sweep(), out=tmp_path / "new", dry_run=True)
    assert (report.decoded, report.cached, report.is_dry_run) == (30, 0, True)
    assert (report.scores_cached, report.scores_done) == (0, 3)
    assert not (tmp_path / "new").exists()
    run_sweep(toy_sweep(), out=tmp_path / "new", limit=5)
    before = tree(tmp_path / "new")
    report = run_sweep(toy_sweep(), out=tmp_path / "new", dry_run=True)
    assert (report.cached, report.scores_cached, report.scores_done) == (15, 0, 3)
    finished = run_sweep(toy_sweep(), out=tmp_path / "new", limit=5, dry_run=True)
    assert "15 cached, would decode 0; scores: 3 cached, would compute 0" in finished.summary()
    assert tree(tmp_path / "new") == before


def test_sweeps_share_cells(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    other = toy_sweep(name="second", methods=[{"method": "ar"}])
    report = run_sweep(other, out=tmp_path)
    assert (report.cached, report.decoded) == (10, 0)
    assert len(Store(tmp_path).sweep_keys()) == 2
    assert [row.method for row in collect(tmp_path)] == ["ar"]
    assert len(collect(tmp_path, build_plan(toy_sweep()).sweep_key)) == 3


def test_another_evaluator_version_has_its_own_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    monkeypatch.setattr(fakes.MeanEvaluator, "version", "2")
    report = run_sweep(toy_sweep(), out=tmp_path)
    assert (report.decoded, report.scores_done) == (0, 3)
    assert collect(tmp_path)[0].metrics["mean"]["version"] == "2"
    assert len(list((first_cell(tmp_path) / "scores").iterdir())) == 2


def test_unknown_executor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ray'"):
        run_sweep(toy_sweep(), out=tmp_path, executor="rai")


def test_the_manifest_knows_every_chunk(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    entries = read_manifest(first_cell(tmp_path))
    assert [(e.rows, e.first) for e in entries.values()] == [(4, "toy/000/0"), (4, "toy/004/0"), (2, "toy/008/0")]


READ = {"prompt 2": PromptTokens(0, unknown=3), "prompt 5": PromptTokens(12, unknown=1, cut=4)}


def test_prompts_that_are_not_read_whole_are_warned_of_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = fakes.FakeTarget.one

    def one(self: fakes.FakeTarget, prompt: str, seed: int, method: SamplerKnobs) -> Decoded:
        return replace(real(self, prompt, seed, method), prompt_tokens=READ.get(prompt, PromptTokens(2)))

    monkeypatch.setattr(fakes.FakeTarget, "one", one)
    run_sweep(toy_sweep(), out=tmp_path)
    (text,) = [record.getMessage() for record in caplog.records if "not read whole" in record.getMessage()]
    assert text.startswith(
        "fake-a: 2 prompts were not read whole: 1 without a known token, 2 with unknown tokens, 1 cut to the encoder's "
        "length; for instance 002 (nothing of it is known, 3 unknown)"
    )
    rows = [row for cell in sorted((tmp_path / "cells").iterdir()) for rows in iter_cell(cell) for row in rows]
    found = [(row["prompt_tokens"], row["prompt_unknown"], row["prompt_cut"]) for row in rows]
    assert found == [astuple(READ.get(row["prompt"], PromptTokens(2))) for row in rows]
    caplog.clear()
    run_sweep(toy_sweep(), out=tmp_path)
    assert "not read whole" not in caplog.text
