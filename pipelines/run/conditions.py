"""The condition stage: prompts are encoded once per encoder, before decoding or timing begins, and kept in the store.

Only targets with an encoder of their own have it (`mulosd.text`); the words of tiny are looked up while
decoding. The driver says what is missing and records it; workers encode and publish chunks, as they do with images.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mulosd.families.encoder_facts import EncoderFacts, encoder_facts
from mulosd.stage.manifest import chunk_name, write_manifest
from pipelines.plan.cells import Plan, Sample
from pipelines.store.layout import LOCK, Store
from pipelines.store.lease import hold
from pipelines.work.tasks import ConditionSource, DecodeTask, EncodeTask, Executor, TargetSpec, condition_item

log = logging.getLogger(__name__)

PROMPTS_PER_CHUNK = 64

OnProgress = Callable[[int, int, int, str], None]  # conditions done, of how many, staged before, of which target


def staged_tasks(
    store: Store, plan: Plan, tasks: Sequence[DecodeTask], get_executor: Callable[[], Executor], on_progress: OnProgress
) -> list[DecodeTask]:
    """The tasks with the conditions that they need, which are all staged when this returns."""
    wanted: dict[str, list[Sample]] = {}
    for task in tasks:
        size = max(task.chunk.wanted, task.entry.rows if task.entry else 0)
        wanted.setdefault(task.target.target_id, []).extend(task.chunk.all_samples[:size])
    sources = stage_conditions(store, plan, wanted, get_executor, on_progress)
    return [replace(task, conditions=sources.get(task.target.target_id)) for task in tasks]


def stage_conditions(
    store: Store,
    plan: Plan,
    wanted: Mapping[str, Sequence[Sample]],
    get_executor: Callable[[], Executor],
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, ConditionSource]:
    """Encode what is not staged of target id -> samples; target id -> source, of the targets that have the stage."""
    sweep, sources = plan.sweep, {}
    for target, samples in wanted.items():
        facts = encoder_facts(plan.cards[target], device=sweep.device, dtype=sweep.dtype)
        if facts is not None:
            spec = TargetSpec(f"{sweep.families}:load_encoder", target, sweep.device, sweep.dtype)
            sources[target] = _stage(store, spec, facts, samples, sweep.batch_size, get_executor, on_progress)
    return sources


def _stage(
    store: Store,
    spec: TargetSpec,
    facts: EncoderFacts,
    samples: Sequence[Sample],
    batch_size: int,
    get_executor: Callable[[], Executor],
    on_progress: OnProgress,
) -> ConditionSource:
    from mulosd.stage.conditions import condition_entries, staged_keys

    folder = store.conditions_dir(facts.identity)
    wanted = {item[0]: item for item in (condition_item(sample, facts.is_seeded) for sample in samples)}
    with hold(folder / LOCK) as lease:  # a second run waits here and then finds the work done
        entries = condition_entries(folder)
        where = staged_keys(folder, entries)
        missing = [item for key, item in wanted.items() if key not in where]
        done = cached = len(wanted) - len(missing)
        on_progress(done, len(wanted), cached, spec.target_id)
        log.info("%s: %d conditions staged, %d to encode", spec.target_id, done, len(missing))
        tasks = _tasks(folder, spec, missing, batch_size, first=1 + max((int(n[6:11]) for n in entries), default=-1))
        for outcome in get_executor().map(tasks) if tasks else ():
            lease.check()
            name = Path(outcome.task.path).name
            entries[name] = outcome.report.entry
            write_manifest(folder, entries)
            where |= {key: name for key, _, _ in outcome.task.items}
            done += len(outcome.task.items)
            on_progress(done, len(wanted), cached, spec.target_id)
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
