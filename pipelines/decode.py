"""Decode one chunk: samples -> rows -> a published chunk file. Runs in a worker; knows nothing of executors.

A chunk is decoded in batches at fixed positions of its full sample list, so that an image's batch does not
depend on what was done before: a batch is kept when all its rows are there, and decoded whole otherwise.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mulosd.errors import DataError, UserError
from mulosd.methods import SamplerKnobs
from mulosd.stage.manifest import FileEntry
from mulosd.types import Decoded
from pipelines.plan import Chunk, Sample

log = logging.getLogger(__name__)


class Target(Protocol):
    """What decoding needs of a loaded target."""

    def decode(
        self, prompts: Sequence[str], seeds: Sequence[int], method: SamplerKnobs, *, frames: bool = False
    ) -> list[Decoded]:
        """One image per prompt."""
        ...


@dataclass(frozen=True)
class TargetSpec:
    """How a worker loads a target: `module:attribute` called as loader(target_id, device=..., dtype=...)."""

    loader: str
    target_id: str
    device: str
    dtype: str


@dataclass(frozen=True)
class DecodeTask:
    """One chunk of one cell to decode into `path`. entry: the manifest's entry of a chunk file that is there."""

    cell_key: str
    label: str
    target: TargetSpec
    method: SamplerKnobs
    chunk: Chunk
    batch_size: int
    path: str
    entry: FileEntry | None = None

    @property
    def name(self) -> str:
        return f"{self.label} chunk {self.chunk.index}"


@dataclass(frozen=True)
class ChunkReport:
    """What became of a chunk: its manifest entry, images decoded and kept, failed samples with their error texts."""

    entry: FileEntry
    decoded: int
    kept: int
    failures: tuple[tuple[str, str], ...]


def decode_chunk(task: DecodeTask, target: Target) -> ChunkReport:
    """Decode what the chunk lacks and publish it; samples that raise become failed rows, UserErrors end the task."""
    from mulosd.stage.write import sample_row, write_chunk

    path = Path(task.path)
    old = existing_rows(task)
    size = max(task.chunk.wanted, len(old))
    samples = task.chunk.all_samples[:size]
    rows: list[Mapping[str, Any]] = []
    kept = 0
    for start in range(0, size, task.batch_size):
        batch = samples[start : start + task.batch_size]
        ready = old[start : start + len(batch)]
        if len(ready) == len(batch) and all(row["error"] is None for row in ready):
            rows += ready
            kept += len(ready)
        else:
            rows += [sample_row(staged) for staged in _decode_batch(task, target, batch)]
    return ChunkReport(write_chunk(path, rows), len(rows) - kept, kept, failures_of(rows))


def fail_chunk(task: DecodeTask, reason: str) -> ChunkReport:
    """Publish the chunk with every sample that is not staged yet as a failed row (the worker died again and again)."""
    from mulosd.stage.write import sample_row, write_chunk

    old = existing_rows(task)
    size = max(task.chunk.wanted, len(old))
    rows: list[Mapping[str, Any]] = list(old)
    rows += [sample_row(_staged(sample, None, reason, 1)) for sample in task.chunk.all_samples[len(old) : size]]
    return ChunkReport(write_chunk(Path(task.path), rows), size - len(old), len(old), failures_of(rows))


def existing_rows(task: DecodeTask) -> list[dict[str, Any]]:
    """Rows that the chunk file holds already; [] without one.

    With a manifest entry the file must match it (DataError). Without one it is the leftover of a run that
    stopped between publishing and recording: it is used when it is readable and its samples are the plan's,
    and decoded anew otherwise.
    """
    from mulosd.stage.read import read_rows, rows_of
    from mulosd.stage.verify import check_entry

    path = Path(task.path)
    if not path.exists():
        return []
    if task.entry is not None:
        rows = rows_of(check_entry(path, task.entry), path)
    else:
        try:
            rows = read_rows(path)
        except DataError as error:
            log.warning("%s: decoding an unrecorded chunk anew: %s", task.name, error)
            return []
    planned = [(sample.sample_id, sample.seed) for sample in task.chunk.all_samples[: len(rows)]]
    if [(row["sample_id"], row["seed"]) for row in rows] != planned:
        raise DataError(
            f"{path} holds other samples or seeds than this sweep asks for; delete the file and run the sweep again."
        )
    return rows


def failures_of(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(sample_id, error) of the failed rows."""
    return tuple((row["sample_id"], row["error"]) for row in rows if row["error"] is not None)


def _decode_batch(task: DecodeTask, target: Target, batch: Sequence[Sample]) -> list[Any]:
    try:
        return _decode_together(task, target, batch)
    except UserError:
        raise
    except Exception as error:
        if len(batch) == 1:
            log.exception("%s: sample %s failed", task.name, batch[0].sample_id)
            return [_staged(batch[0], None, f"{type(error).__name__}: {error}", 1)]
        log.warning("%s: a batch of %d failed (%r); decoding its samples singly", task.name, len(batch), error)
    return [staged for sample in batch for staged in _decode_batch(task, target, [sample])]


def _decode_together(task: DecodeTask, target: Target, batch: Sequence[Sample]) -> list[Any]:
    prompts, seeds = [sample.prompt.text for sample in batch], [sample.seed for sample in batch]
    images = target.decode(prompts, seeds, task.method)
    if len(images) != len(batch):
        raise RuntimeError(f"the decoder returned {len(images)} images for {len(batch)} prompts")
    return [_staged(sample, decoded, None, len(batch)) for sample, decoded in zip(batch, images, strict=True)]


def _staged(sample: Sample, decoded: Decoded | None, error: str | None, batch_images: int) -> Any:
    from mulosd.stage.schema import StagedSample

    prompt = sample.prompt
    return StagedSample(
        sample_id=sample.sample_id,
        benchmark=prompt.benchmark,
        prompt_id=prompt.prompt_id,
        prompt=prompt.text,
        image_index=sample.image_index,
        seed=sample.seed,
        metadata=prompt.metadata,
        decoded=decoded,
        error=error,
        batch_images=batch_images,
    )
