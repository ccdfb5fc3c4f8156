"""The condition stage: prompts are encoded once per encoder, before decoding or timing begins, and kept in the store.

Only targets with an encoder of their own have it (`mulosd.text`); the words of tiny are looked up while
decoding. The driver says what is missing and records it; workers encode and publish chunks, as they do with images.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulosd.errors import UserError
from mulosd.families.encoder_facts import EncoderFacts, encoder_facts
from mulosd.stage.manifest import FileEntry, chunk_name, write_manifest
from pipelines.plan.build import Sample
from pipelines.plan.sweep import Sweep
from pipelines.store.layout import LOCK, Store
from pipelines.store.lease import hold
from pipelines.work.decode import DecodeTask, TargetSpec, free_memory

if TYPE_CHECKING:
    from pipelines.executors.local import Executor

log = logging.getLogger(__name__)

PROMPTS_PER_CHUNK = 64

Told = Callable[[int, int, int, str], None]  # conditions done, of how many, staged before, of which target


@dataclass(frozen=True)
class EncodeTask:
    """Conditions to make and to publish as `path`: (key, prompt, seed or None) each."""

    target: TargetSpec
    items: tuple[tuple[str, str, int | None], ...]
    batch_size: int
    path: str
    is_halved: bool = False

    @property
    def name(self) -> str:
        return f"conditions of {self.target.target_id} {Path(self.path).stem}"


@dataclass(frozen=True)
class EncodeReport:
    """The manifest entry of a published chunk of conditions."""

    entry: FileEntry


@dataclass(frozen=True)
class ConditionSource:
    """Where the conditions of samples lie: chunks of one encoder's folder, later ones first in rank."""

    folder: str
    chunks: tuple[tuple[str, FileEntry], ...]
    is_seeded: bool

    @property
    def identity(self) -> str:
        """Of the encoder (`mulosd.families.encoder_facts.EncoderFacts`)."""
        return Path(self.folder).name

    def rows(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Staged rows of the samples; RuntimeError with the encoder's error where there is none."""
        from mulosd.stage.conditions import read_conditions

        keys = [_item(sample, self.is_seeded)[0] for sample in samples]
        found: dict[str, dict[str, Any]] = {}
        for name, entry in self.chunks:
            found |= {row["key"]: row for row in read_conditions(Path(self.folder) / name, entry, keys)}
        for key, sample in zip(keys, samples, strict=True):
            if key not in found or found[key]["error"] is not None:
                reason = found[key]["error"] if key in found else "it was not asked for"
                raise RuntimeError(f"{sample.sample_id} has no condition: {reason}")
        return [found[key] for key in keys]


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


def staged_tasks(
    store: Store, sweep: Sweep, tasks: Sequence[DecodeTask], get_executor: Callable[[], "Executor"], tell: Told
) -> list[DecodeTask]:
    """The tasks with the conditions that they need, which are all staged when this returns."""
    wanted: dict[str, list[Sample]] = {}
    for task in tasks:
        size = max(task.chunk.wanted, task.entry.rows if task.entry else 0)
        wanted.setdefault(task.target.target_id, []).extend(task.chunk.all_samples[:size])
    sources = stage_conditions(store, sweep, wanted, get_executor, tell)
    return [replace(task, conditions=sources.get(task.target.target_id)) for task in tasks]


def stage_conditions(
    store: Store,
    sweep: Sweep,
    wanted: Mapping[str, Sequence[Sample]],
    get_executor: Callable[[], "Executor"],
    tell: Told = lambda *_: None,
) -> dict[str, ConditionSource]:
    """Encode what is not staged of target id -> samples; target id -> source, of the targets that have the stage."""
    families = import_module(sweep.families)
    sources = {}
    for target, samples in wanted.items():
        facts = encoder_facts(families.load_card(target), device=sweep.device, dtype=sweep.dtype)
        if facts is not None:
            spec = TargetSpec(f"{sweep.families}:load_encoder", target, sweep.device, sweep.dtype)
            sources[target] = _stage(store, spec, facts, samples, sweep.batch_size, get_executor, tell)
    return sources


def _stage(
    store: Store,
    spec: TargetSpec,
    facts: EncoderFacts,
    samples: Sequence[Sample],
    batch_size: int,
    get_executor: Callable[[], "Executor"],
    tell: Told,
) -> ConditionSource:
    from mulosd.stage.conditions import condition_entries, staged_keys

    folder = store.conditions_dir(facts.identity)
    wanted = {item[0]: item for item in (_item(sample, facts.is_seeded) for sample in samples)}
    with hold(folder / LOCK) as lease:  # a second run waits here and then finds the work done
        entries = condition_entries(folder)
        where = staged_keys(folder, entries)
        missing = [item for key, item in wanted.items() if key not in where]
        done = cached = len(wanted) - len(missing)
        tell(done, len(wanted), cached, spec.target_id)
        log.info("%s: %d conditions staged, %d to encode", spec.target_id, done, len(missing))
        tasks = _tasks(folder, spec, missing, batch_size, first=1 + max((int(n[6:11]) for n in entries), default=-1))
        for outcome in get_executor().map(tasks) if tasks else ():
            lease.check()
            name = Path(outcome.task.path).name
            entries[name] = outcome.report.entry
            write_manifest(folder, entries)
            where |= {key: name for key, _, _ in outcome.task.items}
            done += len(outcome.task.items)
            tell(done, len(wanted), cached, spec.target_id)
    names = sorted({where[key] for key in wanted})
    return ConditionSource(str(folder), tuple((name, entries[name]) for name in names), facts.is_seeded)


def _tasks(
    folder: Path, spec: TargetSpec, items: Sequence[tuple[str, str, int | None]], batch_size: int, *, first: int
) -> list[EncodeTask]:
    parts = [items[i : i + PROMPTS_PER_CHUNK] for i in range(0, len(items), PROMPTS_PER_CHUNK)]
    return [
        EncodeTask(spec, tuple(part), batch_size, str(folder / chunk_name(first + number)))
        for number, part in enumerate(parts)
    ]


def _item(sample: Sample, is_seeded: bool) -> tuple[str, str, int | None]:
    from mulosd.stage.conditions import condition_key

    seed = sample.seed if is_seeded else None
    return condition_key(sample.prompt.text, seed), sample.prompt.text, seed


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
            log.warning("%s: a batch of %d failed (%s); encoding singly", task.name, len(items), reason)
    free_memory()  # out here the error is gone, whose frames hold the tensors of the failed call
    if len(items) == 1:
        key, prompt, seed = items[0]
        return [{"key": key, "prompt": prompt, "seed": seed, "error": reason}]
    return [row for item in items for row in _encode(task, encoder, [item])]


def _encode_together(encoder: Any, items: Sequence[tuple[str, str, int | None]]) -> list[dict[str, Any]]:
    from mulosd.text.packing import pack

    began = time.perf_counter()
    encoded = encoder.encode([prompt for _, prompt, _ in items], [seed or 0 for _, _, seed in items])
    packed = pack(encoded.condition)  # brings the values to the host, so that the clock has seen all work
    seconds = time.perf_counter() - began
    return [
        {"key": key, "prompt": prompt, "seed": seed, **row, "padded_ids": padded}
        | {"encode_s": seconds, "batch_prompts": len(items)}
        for (key, prompt, seed), row, padded in zip(items, packed, encoded.padded_ids, strict=True)
    ]
