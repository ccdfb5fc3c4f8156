"""Decoding a chunk: memory that runs out, samples that fail, leftovers, two workers on one chunk."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mulosd.errors import DataError, DecodingFailed
from mulosd.stage.read import read_rows
from mulosd.types import Decoded
from pipelines.plan.build import build_plan
from pipelines.work.decode import decode_chunk, fail_chunk, is_out_of_memory
from pipelines.work.tasks import DecodeTask, TargetSpec
from tests.fakes import FakeTarget, toy_sweep


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


class Small(FakeTarget):
    """Holds at most `most` images at once."""

    def __init__(self, most: int) -> None:
        super().__init__("fake-a")
        self.most = most
        self.calls: list[int] = []

    def decode(
        self, prompts: Sequence[str], seeds: Sequence[int], method: Any, *, frames: bool = False
    ) -> list[Decoded]:
        self.calls.append(len(prompts))
        if len(prompts) > self.most:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().decode(prompts, seeds, method)


def task(folder: Path, **changes: Any) -> DecodeTask:
    """Chunk 0 of the toy sweep's first cell: four samples, in batches of four."""
    cell = build_plan(toy_sweep()).cells[0]
    path = folder / "cells" / cell.key / "images" / "chunk-00000.parquet"
    target = TargetSpec("tests.fakes:load_target", "fake-a", "cpu", "float32")
    return replace(DecodeTask(cell.key, "toy", target, cell.method, cell.chunks[0], 4, str(path)), **changes)


def test_out_of_memory_halves_the_batch_once(tmp_path: Path) -> None:
    target = Small(2)
    report = decode_chunk(task(tmp_path), target)
    assert target.calls == [4, 2, 2]
    assert (report.failures, report.decoded) == ((), 4)
    rows = read_rows(Path(task(tmp_path).path))
    assert [row["batch_images"] for row in rows] == [2] * 4
    decode_chunk(task(tmp_path / "whole"), Small(4))
    whole = read_rows(Path(task(tmp_path / "whole").path))
    assert [row["token_ids"] for row in rows] == [row["token_ids"] for row in whole]


def test_out_of_memory_twice_is_failed_rows(tmp_path: Path) -> None:
    target = Small(1)
    report = decode_chunk(task(tmp_path), target)
    assert target.calls == [4, 2, 2]  # no third try, sample by sample
    assert len(report.failures) == 4
    assert "OutOfMemoryError: CUDA out of memory" in report.failures[0][1]
    assert "with 2 images at once; lower batch_size" in report.failures[0][1]


def test_a_task_that_lost_its_worker_to_memory_begins_with_halves(tmp_path: Path) -> None:
    target = Small(2)
    assert decode_chunk(task(tmp_path, is_halved=True), target).failures == ()
    assert target.calls == [2, 2]
    target = Small(1)
    assert len(decode_chunk(task(tmp_path / "b", is_halved=True), target).failures) == 4
    assert target.calls == [2, 2]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (None, False),
    ],
)
def test_what_is_out_of_memory(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_a_wrong_result_fails_its_sample_only(tmp_path: Path) -> None:
    class Wrong(FakeTarget):
        def one(self, prompt: str, seed: int, method: Any) -> Decoded:
            decoded = super().one(prompt, seed, method)
            if prompt == "prompt 2":
                decoded.status = np.zeros((1, 1), np.uint8)
            return decoded

    report = decode_chunk(task(tmp_path), Wrong("fake-a"))
    assert [sample for sample, _ in report.failures] == ["toy/002/0"]
    assert "status must be" in report.failures[0][1]


def test_a_leftover_of_a_grown_chunk_is_used(tmp_path: Path) -> None:
    whole = task(tmp_path)
    short = replace(whole, chunk=replace(whole.chunk, wanted=2))
    entry = decode_chunk(short, Small(4)).entry
    decode_chunk(replace(whole, entry=entry), Small(4))  # and the run is killed before it is recorded
    again = decode_chunk(replace(whole, entry=entry), Small(0))
    assert (again.kept, again.failures) == (4, ())


def test_a_damaged_recorded_chunk_ends_the_task(tmp_path: Path) -> None:
    whole = task(tmp_path)
    entry = decode_chunk(whole, Small(4)).entry
    path = Path(whole.path)
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="does not match its manifest"):
        decode_chunk(replace(whole, entry=entry), Small(4))
    assert decode_chunk(whole, Small(4)).kept == 0  # an unrecorded one is decoded anew


def test_the_first_of_two_workers_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = task(tmp_path)
    first: list[Any] = []

    class Slow(Small):
        """Another worker finishes the same chunk while this one decodes; this one's pixels would differ."""

        def decode(self, *args: Any, **options: Any) -> list[Decoded]:
            first.append(decode_chunk(whole, Small(4)))
            found = super().decode(*args, **options)
            for decoded in found:
                decoded.image = decoded.image + 1
            return found

    with caplog.at_level(logging.WARNING):
        report = decode_chunk(whole, Slow(4))
    assert report.entry == first[0].entry
    assert "another worker has published it meanwhile" in caplog.text
    images = {row["pixel_sha256"] for row in read_rows(Path(whole.path))}
    decode_chunk(task(tmp_path / "alone"), Small(4))
    assert images == {row["pixel_sha256"] for row in read_rows(Path(task(tmp_path / "alone").path))}


def test_a_chunk_without_failures_replaces_one_with(tmp_path: Path) -> None:
    whole = task(tmp_path)

    class Slow(Small):
        def decode(self, *args: Any, **options: Any) -> list[Decoded]:
            fail_chunk(whole, "the worker died")
            return super().decode(*args, **options)

    assert decode_chunk(whole, Slow(4)).failures == ()
    assert [row["error"] for row in read_rows(Path(whole.path))] == [None] * 4


class Overflowing(FakeTarget):
    """A batch whose second image meets a NaN."""

    def decode(
        self, prompts: Sequence[str], seeds: Sequence[int], method: Any, *, frames: bool = False
    ) -> list[Decoded]:
        images: list[Decoded | str] = [*super().decode(prompts, seeds, method)]
        images[1] = "the drafter's logits are not finite"
        raise DecodingFailed("1 of 4 images failed", images)


def test_an_image_that_is_not_finite_is_a_failed_row_and_its_neighbours_are_not(tmp_path: Path) -> None:
    report = decode_chunk(task(tmp_path), Overflowing("fake-a"))
    rows = read_rows(Path(task(tmp_path).path))
    assert report.failures == ((rows[1]["sample_id"], "the drafter's logits are not finite"),)
    assert [row["image"] is None for row in rows] == [False, True, False, False]
    assert [row["batch_images"] for row in rows] == [4] * 4  # decoded once, together
    decode_chunk(task(tmp_path / "sound"), FakeTarget("fake-a"))
    sound = read_rows(Path(task(tmp_path / "sound").path))
    assert [row for i, row in enumerate(rows) if i != 1] == [row for i, row in enumerate(sound) if i != 1]
