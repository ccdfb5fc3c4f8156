"""Decode one chunk: samples -> rows -> a published chunk file. Runs in a worker; knows nothing of executors.

A chunk is decoded in batches at fixed positions of its full sample list, so that an image's batch does not
depend on what was done before: a batch is kept when all its rows are there, and decoded whole otherwise.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mulosd.errors import DataError, DecodingFailed, UserError
from mulosd.stage.manifest import FileEntry
from mulosd.types import Decoded, PromptTokens
from pipelines.plan.cells import Sample
from pipelines.work.tasks import ChunkReport, ConditionSource, DecodeTask, Target

log = logging.getLogger(__name__)

PROMPT_COLUMNS = ("prompt_tokens", "prompt_unknown", "prompt_cut")  # of a row: the fields of PromptTokens


def decode_chunk(task: DecodeTask, target: Target) -> ChunkReport:
    """Decode what the chunk lacks and publish it; samples that raise become failed rows, UserErrors end the task."""
    old, base = existing_rows(task)
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
            for part in _halves(batch) if task.is_halved else [batch]:
                rows += _decode_batch(task, target, part, may_halve=not task.is_halved)
    return _publish(task, rows, base, kept)


def fail_chunk(task: DecodeTask, reason: str) -> ChunkReport:
    """Publish the chunk with every sample that is not staged yet as a failed row (the worker died again and again)."""
    old, base = existing_rows(task)
    size = max(task.chunk.wanted, len(old))
    rows: list[Mapping[str, Any]] = [*old, *_failed_rows(task.chunk.all_samples[len(old) : size], reason)]
    return _publish(task, rows, base, len(old))


def existing_rows(task: DecodeTask) -> tuple[list[dict[str, Any]], str | None]:
    """Rows that the chunk file holds already, and the digest of the file: ([], None) without one.

    A file that is not the recorded one is the leftover of a run that stopped between publishing and recording. It is
    used when it proves itself intact and this cell's. Otherwise it is damaged: DataError where one is recorded; an
    unrecorded one is decoded again.
    """
    from mulosd.files.publish import sha256_hex
    from mulosd.stage.read import read_bytes, rows_of
    from mulosd.stage.verify import ForeignChunk

    path = Path(task.path)
    if not path.exists():
        return [], None
    data = read_bytes(path)
    try:
        is_recorded = check_recorded(data, path, task.entry, task.cell_key)
    except DataError as error:
        if task.entry is not None or isinstance(error, ForeignChunk):
            raise
        log.warning("%s: decoding an unrecorded chunk again: %s", task.name, error)
        return [], sha256_hex(data)
    rows = rows_of(data, path)
    if not is_recorded:
        log.warning("%s: using %d images that a stopped run had published", task.name, len(rows))
    planned = [(sample.sample_id, sample.seed) for sample in task.chunk.all_samples[: len(rows)]]
    if [(row["sample_id"], row["seed"]) for row in rows] != planned:
        raise DataError(
            f"{path} has other samples or seeds than this sweep asks for; delete the file and run the sweep again."
        )
    return rows, sha256_hex(data)


def check_recorded(data: bytes, path: Path, entry: FileEntry | None, cell_key: str) -> bool:
    """Whether a chunk's content is the recorded one; False for an intact one of this cell that is not recorded.

    DataError for anything else.
    """
    from mulosd.files.publish import sha256_hex
    from mulosd.stage.verify import ForeignChunk, check_content, check_proof

    if entry is not None and len(data) == entry.bytes and sha256_hex(data) == entry.sha256:
        return True
    try:
        check_proof(data, path, cell_key)
    except DataError as error:
        if entry is not None and not isinstance(error, ForeignChunk):
            check_content(data, path, entry)  # raises with what to do about it
        raise
    return False


def failures_of(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(sample_id, error) of the failed rows."""
    return tuple((row["sample_id"], row["error"]) for row in rows if row["error"] is not None)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a host or a device had no memory left (torch says so in three ways)."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names or "can't allocate memory" in str(error)


def _decode_batch(
    task: DecodeTask, target: Target, batch: Sequence[Sample], *, may_halve: bool
) -> list[Mapping[str, Any]]:
    """Rows of a batch. Out of memory: once more in two halves. Another error: sample by sample, to find the bad one."""
    try:
        return _decode_together(task, target, batch)
    except UserError:
        raise
    except Exception as error:
        reason, is_memory = f"{type(error).__name__}: {error}", is_out_of_memory(error)
        if is_memory:
            log.warning("%s: out of memory with %d images at once", task.name, len(batch))
        elif len(batch) > 1:
            log.warning(
                "%s: a batch of %d failed (%r); decoding its samples one at a time", task.name, len(batch), error
            )
        else:
            log.exception("%s: sample %s failed", task.name, batch[0].sample_id)
    # Out here the error is gone, whose frames hold the tensors of the failed call.
    if is_memory:
        free_memory()
        if not may_halve or len(batch) == 1:
            return _failed_rows(batch, f"{reason} (with {len(batch)} images at once; lower batch_size)")
        return [row for part in _halves(batch) for row in _decode_batch(task, target, part, may_halve=False)]
    if len(batch) == 1:
        return _failed_rows(batch, reason)
    return [row for sample in batch for row in _decode_batch(task, target, [sample], may_halve=may_halve)]


def _decode_together(task: DecodeTask, target: Target, batch: Sequence[Sample]) -> list[Mapping[str, Any]]:
    from mulosd.stage.write import sample_row

    prompts, seeds = [sample.prompt.text for sample in batch], [sample.seed for sample in batch]
    images: Sequence[Decoded | str]
    staged = task.conditions.rows(batch) if task.conditions else [{}] * len(batch)
    given = {"condition": _unpacked(staged)} if task.conditions else {}
    try:
        images = target.decode(prompts, seeds, task.method, **given)
    except DecodingFailed as error:  # the others are what they would be without the failed ones
        log.warning("%s: %s", task.name, error)
        images = error.results
    if len(images) != len(batch):
        raise RuntimeError(f"the decoder returned {len(images)} images for {len(batch)} prompts")
    rows: list[Mapping[str, Any]] = []
    for sample, image, condition in zip(batch, images, staged, strict=True):
        decoded, error = (None, image) if isinstance(image, str) else (image, None)
        row = sample_row(_staged(sample, decoded, error, len(batch)))
        rows.append({**row, **{name: condition[name] for name in PROMPT_COLUMNS if condition.get(name) is not None}})
    return rows


def condition_of(source: ConditionSource | None, samples: Sequence[Sample]) -> dict[str, Any]:
    """The `condition` argument of `Target.decode` for these samples; {} where the target encodes by itself."""
    return {} if source is None else {"condition": _unpacked(source.rows(samples))}


def _unpacked(rows: Sequence[Mapping[str, Any]]) -> Any:
    from mulosd.text.packing import unpack

    return unpack(rows)


def losses_of(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, PromptTokens], ...]:
    """(prompt id, what was read of it) of the prompts that were not read whole, of the rows that say so."""
    read = {
        row["prompt_id"]: PromptTokens(*(row[name] for name in PROMPT_COLUMNS))
        for row in rows
        if row["prompt_tokens"] is not None
    }
    return tuple((prompt, tokens) for prompt, tokens in read.items() if tokens.loss)


def _failed_rows(samples: Sequence[Sample], reason: str) -> list[Mapping[str, Any]]:
    from mulosd.stage.write import sample_row

    return [sample_row(_staged(sample, None, reason, 1)) for sample in samples]


def _halves(batch: Sequence[Sample]) -> list[Sequence[Sample]]:
    middle = (len(batch) + 1) // 2
    return [part for part in (batch[:middle], batch[middle:]) if part]


def free_memory() -> None:
    """Give cached device memory back, where torch is in use."""
    import gc

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _versions(task: DecodeTask, kept: int, size: int) -> tuple[str, ...]:
    """Versions of the code that made the rows: those of the file that `kept` rows come from, and that of this task."""
    from mulosd.stage.read import versions_of
    from mulosd.stage.schema import UNKNOWN_VERSION

    before = versions_of(Path(task.path)) if kept else ()
    if kept == size or not task.version:
        return before
    if kept and not before:
        before = (UNKNOWN_VERSION,)
    return tuple(dict.fromkeys([*before, task.version]))


def _publish(task: DecodeTask, rows: Sequence[Mapping[str, Any]], base: str | None, kept: int) -> ChunkReport:
    """Publish the rows unless another worker has finished the same chunk meanwhile: the first one's file stays."""
    from mulosd.stage.read import read_bytes
    from mulosd.stage.write import entry_of, publish_chunk

    path = Path(task.path)
    versions = _versions(task, kept, len(rows))
    entry = publish_chunk(path, rows, cell_key=task.cell_key, base=base, versions=versions)
    if entry is None:
        theirs, base = existing_rows(replace(task, entry=None))
        if len(theirs) < len(rows) or len(failures_of(theirs)) > len(failures_of(rows)):
            return _publish(task, rows, base, kept)
        log.warning("%s: another worker has published it meanwhile; keeping that file", task.name)
        rows, entry = theirs, entry_of(theirs, read_bytes(path))
    return ChunkReport(entry, len(rows) - kept, kept, failures_of(rows), losses_of(rows))


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
        prompt_tokens=decoded.prompt_tokens if decoded else None,
    )
