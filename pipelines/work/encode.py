"""Encode one chunk of prompts: conditions -> a published chunk file. Runs in a worker; knows nothing of executors."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import UserError
from pipelines.work.decode import free_memory
from pipelines.work.tasks import EncodeReport, EncodeTask

log = logging.getLogger(__name__)


def encode_chunk(task: EncodeTask, encoder: Any) -> EncodeReport:
    """Encode and publish; prompts that raise become rows with an error, UserErrors end the task."""
    from mulosd.stage.conditions import write_conditions

    size = max(1, task.batch_size // 2) if task.is_halved else task.batch_size
    rows: list[dict[str, Any]] = []
    for start in range(0, len(task.items), size):
        rows += _encode(task, encoder, task.items[start : start + size])
    if short := [row["padded_ids"] for row in rows if row.get("padded_ids")]:
        log.warning("%s: %d of %d are short, %d ids filled with 0", task.name, len(short), len(rows), sum(short))
    return EncodeReport(write_conditions(Path(task.path), rows))


def _encode(task: EncodeTask, encoder: Any, items: Sequence[tuple[str, str, int | None]]) -> list[dict[str, Any]]:
    """Rows of a batch; when it fails, one by one."""
    try:
        return _encode_together(encoder, items)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if len(items) == 1:
            log.exception("%s: %r failed", task.name, items[0][1])
        else:
            log.warning("%s: a batch of %d failed (%s); encoding one at a time", task.name, len(items), reason)
    free_memory()  # out here the error is gone, whose frames hold the tensors of the failed call
    if len(items) == 1:
        key, prompt, seed = items[0]
        return [{"key": key, "prompt": prompt, "seed": seed, "error": reason}]
    return [row for item in items for row in _encode(task, encoder, [item])]


def _encode_together(encoder: Any, items: Sequence[tuple[str, str, int | None]]) -> list[dict[str, Any]]:
    from mulosd.stage.write import prompt_columns
    from mulosd.text.packing import broken_rows, pack

    began = time.perf_counter()
    encoded = encoder.encode([prompt for _, prompt, _ in items], [seed or 0 for _, _, seed in items])
    packed = pack(encoded.condition)  # brings the values to the host, so that the clock has seen all work
    seconds = time.perf_counter() - began
    failed = {*encoded.failed, *broken_rows(encoded.condition)}
    rows: list[dict[str, Any]] = []
    for b, (key, prompt, seed) in enumerate(items):
        row = {"key": key, "prompt": prompt, "seed": seed}
        if b in failed:
            rows.append({**row, "error": "the numbers of the encoder are not finite (NaN or infinite)"})
            continue
        row |= {**packed[b], "padded_ids": encoded.padded_ids[b]}
        row |= prompt_columns(encoded.tokens[b]) if encoded.tokens else {}
        rows.append({**row, "encode_s": seconds, "batch_prompts": len(items)})
    return rows
