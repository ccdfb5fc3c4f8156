"""Run a sweep: plan -> decode what is missing -> score what is missing -> record. There is no separate state.

Running the same sweep again continues, extends (a larger limit) or does nothing. The driver is the only
writer of manifests and records; workers publish chunk and state files.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mulosd.errors import UserError
from mulosd.methods import knobs_of
from mulosd.stage.manifest import FileEntry
from mulosd.types import PromptTokens
from pipelines.executors.choose import open_executor
from pipelines.host.provenance import code_version, provenance
from pipelines.host.signals import stop_on_signals
from pipelines.plan import gpu_requests as resources
from pipelines.plan.build import build_plan, check_networks, check_weights
from pipelines.plan.cells import Cell, Plan
from pipelines.plan.sweep import Sweep
from pipelines.run.conditions import staged_tasks
from pipelines.run.progress import Progress, ProgressCallback
from pipelines.run.progress_file import progress_file
from pipelines.run.score_jobs import (
    Basis,
    ScoreJob,
    basis_of,
    finish_job,
    is_scored,
    record_state,
    score_jobs,
    score_tasks,
    warn_of_pickles,
)
from pipelines.store.layout import Store, is_complete
from pipelines.work.decode import check_recorded
from pipelines.work.scorers import scorer_spec
from pipelines.work.tasks import ChunkReport, DecodeTask, EvaluatorSpec, Executor, TargetSpec

log = logging.getLogger(__name__)

CellsCallback = Callable[[str], None]


@dataclass(frozen=True)
class RunReport:
    """What a run did. images: asked for in all cells = cached + decoded (planned, in a dry run).

    failures: (cell label, sample_id, error) of the images that failed and are staged as failed rows.
    scores_cached and scores_done count (cell, evaluator) pairs (done: those to compute, in a dry run).
    """

    name: str
    sweep_key: str
    store: Path
    images: int
    cached: int
    decoded: int
    failures: tuple[tuple[str, str, str], ...] = ()
    scores_cached: int = 0
    scores_done: int = 0
    wall_s: float = 0.0
    is_dry_run: bool = False

    @property
    def failed(self) -> int:
        """Failed images."""
        return len(self.failures)

    def summary(self) -> str:
        """One line for people."""
        head = f"sweep {self.name} ({self.sweep_key}): {self.images} images, {self.cached} cached"
        scores = f"scores: {self.scores_cached} cached"
        if self.is_dry_run:
            return f"{head}, would decode {self.decoded}; {scores}, would compute {self.scores_done}"
        return (
            f"{head}, decoded {self.decoded}, {self.failed} failed; {scores}, {self.scores_done} computed; "
            f"{self.wall_s:.1f} s"
        )


class RunFailed(UserError):
    """More images failed than `max_failed` allows; what succeeded is staged and `report` says what happened."""

    def __init__(self, message: str, report: RunReport | None = None) -> None:
        super().__init__(message)
        self.report = report


@dataclass
class _Run:
    plan: Plan
    store: Store
    executor: str
    workers: int | None
    num_gpus: Mapping[str, float]
    progress: ProgressCallback
    record: dict[str, Any]
    workforce: dict[str, Any] = field(default_factory=dict)
    cached: int = 0
    decoded: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    scores_cached: int = 0
    scores_done: int = 0
    losses: dict[str, dict[str, PromptTokens]] = field(default_factory=dict)  # target -> prompt id -> what was read
    finished: CellsCallback = lambda key: None
    decoded_cells: set[str] = field(default_factory=set)
    scores: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def show_cells(self) -> None:
        """Publish what can be read of the sweep so far, and tell the caller."""
        if self.decoded_cells:
            cells = [cell for cell in self.plan.cells if cell.key in self.decoded_cells]
            record = {**_sweep_record(self, cells), "num_cells": len(self.plan.cells)}
            self.store.write_partial(self.plan.sweep_key, record)
            self.finished(self.plan.sweep_key)


def run_sweep(
    sweep: Sweep,
    *,
    out: str | Path,
    executor: str = "inprocess",
    workers: int | None = None,
    num_gpus: Mapping[str, float] | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    progress: ProgressCallback | None = None,
    finished: CellsCallback | None = None,
) -> RunReport:
    """Decode and score a sweep into the store `out`.

    executor: "inprocess" or "ray", with at most `workers` actors and `num_gpus` each, over what the sweep asks for (see
    `RayExecutor`). limit: only the first prompts. dry_run: say what is cached and what is left, and write nothing.
    finished: called with the sweep's key whenever a cell was decoded or scored, which can be read by then.
    SIGTERM ends it tidily; the same command continues. Raises UserErrors for what a user can fix, before any work where
    it can be known then, and RunFailed at the end when more than `max_failed` images failed.
    """
    start = time.monotonic()
    plan = build_plan(sweep, limit=limit)
    gpus = resources.override_gpus(num_gpus or {}, sweep.num_gpus, sweep.targets)
    check_networks(plan)
    if not dry_run:
        check_weights(plan)
    store = Store(out) if dry_run else Store.open(out)
    for cell in plan.cells:
        store.check_cell(cell)
    if dry_run:
        return _dry_report(plan, store)
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals())
        shown = stack.enter_context(progress_file(store.sweep_dir(plan.sweep_key), then=progress or (lambda _: None)))
        run = _Run(plan, store, executor, workers, gpus, shown, provenance(), finished=finished or (lambda key: None))
        get_executor = stack.enter_context(_executor(run))
        _decode(run, get_executor)
        if len(run.failures) > sweep.max_failed:
            raise RunFailed(_failure_text(run), _run_report(run, start))
        _score(run, get_executor)
        store.write_sweep(plan.sweep_key, _sweep_record(run, plan.cells))
    return _run_report(run, start)


@contextmanager
def _executor(run: _Run) -> Iterator[Callable[[], Executor]]:
    """A function that opens the executor on its first call: a run with nothing to do starts no workers."""
    with ExitStack() as stack:
        opened: list[Executor] = []

        def get() -> Executor:
            if not opened:
                options: dict[str, Any] = {
                    "device": run.plan.sweep.device,
                    "workers": run.workers,
                    "num_gpus": run.num_gpus,
                }
                opened.append(stack.enter_context(open_executor(run.executor, **options)))
                stack.enter_context(stop_on_signals())  # Ray has put its own handler in place
                run.workforce = opened[0].describe()
            return opened[0]

        yield get


def _decode(run: _Run, get_executor: Callable[[], Executor]) -> None:
    """Decode what is missing under the cells' locks, taken in sorted order so that two runs cannot block each other."""
    plan, store = run.plan, run.store
    pending = {cell.key for cell in plan.cells if not store.check_cell(cell) or _decode_tasks(run, cell)}
    with ExitStack() as locks:
        for key in sorted(pending):
            locks.enter_context(store.lock_cell(key))
        # Another run may have done the work while this one waited for the lock: look again.
        tasks = [task for cell in plan.cells if cell.key in pending for task in _decode_tasks(run, cell)]
        todo = sum(task.chunk.wanted for task in tasks)
        run.cached = plan.n_samples - todo
        tasks = staged_tasks(store, plan, tasks, get_executor, partial(_tell_encoding, run))
        run.progress(Progress("decode", run.cached, plan.n_samples, run.cached, 0))
        executor = get_executor() if tasks else None
        encoders = {task.cell_key: {"conditions": task.conditions.identity} for task in tasks if task.conditions}
        for cell in plan.cells:
            if cell.key in pending:
                store.open_cell(cell, {**run.record, **run.workforce, **encoders.get(cell.key, {})})
        left = Counter(task.cell_key for task in tasks)
        run.decoded_cells |= {cell.key for cell in plan.cells} - left.keys()
        for outcome in executor.map(tasks) if executor else ():
            _record_chunk(run, outcome.task, outcome.report)
            left[outcome.task.cell_key] -= 1
            if not left[outcome.task.cell_key]:
                run.decoded_cells.add(outcome.task.cell_key)
                run.show_cells()
    for target, prompts in run.losses.items():
        log.warning("%s", _loss_text(target, prompts))


def _tell_encoding(run: _Run, done: int, total: int, cached: int, target: str) -> None:
    run.progress(Progress("encode", done, total, cached, 0, f"conditions of {target}"))


def _record_chunk(run: _Run, task: DecodeTask, report: ChunkReport) -> None:
    run.store.record_chunk(task.cell_key, task.chunk.index, report.entry)
    kept = min(report.kept, task.chunk.wanted)
    run.cached += kept
    run.decoded += task.chunk.wanted - kept
    run.failures += [(task.label, sample_id, error) for sample_id, error in report.failures]
    if report.losses:
        run.losses.setdefault(task.target.target_id, {}).update(report.losses)
    total = run.plan.n_samples
    done = run.cached + run.decoded
    run.progress(Progress("decode", done, total, run.cached, len(run.failures), task.name))


def _decode_tasks(run: _Run, cell: Cell) -> list[DecodeTask]:
    """The cell's chunks that are missing, not recorded, too short or hold failures; DataError for a damaged one."""
    from mulosd.stage.read import read_bytes

    sweep = run.plan.sweep
    target = TargetSpec(f"{sweep.families}:load_target", cell.target, sweep.device, sweep.dtype)
    entries = run.store.entries(cell.key)
    tasks = []
    for chunk in cell.chunks:
        path = run.store.chunk_path(cell.key, chunk.index)
        entry: FileEntry | None = entries.get(chunk.index)
        if entry is not None and not check_recorded(read_bytes(path), path, entry, cell.key):
            entry = None  # a stopped run had published a longer chunk and not recorded it
        if not is_complete(entry, chunk):
            where = (cell.key, cell.label, target, cell.method, chunk, sweep.batch_size, str(path), entry)
            tasks.append(DecodeTask(*where, version=code_version(run.record)))
    return tasks


def _score(run: _Run, get_executor: Callable[[], Executor]) -> None:
    """Score what is not scored; run.scores: cell key -> evaluator -> [score folder name, digest of the basis]."""
    jobs = _score_jobs(run.plan, run.store)
    open_jobs = [job for job in jobs if not is_scored(job)]
    with ExitStack() as locks:
        for key in sorted({job.cell.key for job in open_jobs}):
            locks.enter_context(run.store.lock_cell(key))
        open_jobs = [job for job in open_jobs if not is_scored(job)]
        run.scores_cached = len(jobs) - len(open_jobs)
        warn_of_pickles(open_jobs)
        _score_chunks(run, jobs, open_jobs, get_executor)


def _finish_cell(run: _Run, cell_key: str, jobs: Sequence[ScoreJob], open_jobs: Sequence[ScoreJob]) -> None:
    """The scores of a cell whose states are all there."""
    current = frozenset(entry.sha256 for entry in run.store.entries(cell_key).values())
    for job in open_jobs:
        if job.cell.key == cell_key:
            finish_job(job, current_chunks=current)
            run.scores_done += 1
    for job in jobs:
        if job.cell.key == cell_key:
            run.scores.setdefault(cell_key, {})[job.spec.name] = [job.folder.name, job.digest]


def _score_jobs(plan: Plan, store: Store, *, is_dry_run: bool = False) -> list[ScoreJob]:
    """The score jobs of the plan. is_dry_run: a cell whose images are not all staged has jobs without a basis."""
    has_scenes = all("scene" in prompt.metadata for prompt in plan.prompts)

    def specs_of(cell: Cell) -> list[EvaluatorSpec]:
        return [
            scorer_spec(name, registry=plan.sweep.registry, image_px=cell.image_px, has_scenes=has_scenes)
            for name in plan.sweep.evaluators
        ]

    def basis(cell: Cell) -> Basis:
        is_lacking = is_dry_run and store.staged(cell) < cell.n_samples
        return () if is_lacking else basis_of(store, cell)

    return score_jobs(store, plan.cells, specs_of, basis)


def _dry_report(plan: Plan, store: Store) -> RunReport:
    """What is there and what a run would do, by the manifests."""
    cached = sum(store.staged(cell) for cell in plan.cells)
    jobs = _score_jobs(plan, store, is_dry_run=True)
    scored = sum(is_scored(job) for job in jobs)
    counts = {"cached": cached, "decoded": plan.n_samples - cached}
    return _report(plan, store, **counts, scores_cached=scored, scores_done=len(jobs) - scored, is_dry_run=True)


def _score_chunks(
    run: _Run, jobs: Sequence[ScoreJob], open_jobs: Sequence[ScoreJob], get_executor: Callable[[], Executor]
) -> None:
    """Make the states that the open jobs lack, and the scores of each cell as soon as its states are there.

    Jobs on the states of a source make none and are not counted.
    """
    folders = {(job.cell.key, job.spec.name): job.folder for job in open_jobs}
    tasks = [task for job in open_jobs for task in score_tasks(run.store, job)]
    total = sum(len(job.basis) for job in jobs if job.states == job.folder)
    done = cached = total - len(tasks)
    run.progress(Progress("score", done, total, cached, 0))
    left = Counter(task.cell_key for task in tasks)
    for cell in run.plan.cells:
        if not left[cell.key]:
            _finish_cell(run, cell.key, jobs, open_jobs)
    for outcome in get_executor().map(tasks) if tasks else ():
        key = outcome.task.cell_key
        run.store.check_lease(key)
        record_state(outcome.report, folders[key, outcome.task.evaluator.name])
        done += 1
        run.progress(Progress("score", done, total, cached, 0, outcome.task.name))
        left[key] -= 1
        if not left[key]:
            _finish_cell(run, key, jobs, open_jobs)
            run.show_cells()


def _sweep_record(run: _Run, cells: Sequence[Cell]) -> dict[str, Any]:
    """What `results.collect` needs: cells in order, the rows of each chunk that belong to the sweep, and scores."""
    sweep, plan = run.plan.sweep, run.plan
    resolved = {
        **{key: value for key, value in asdict(sweep).items() if key not in ("families", "registry")},
        "methods": [{"method": method.name, **knobs_of(method)} for method in sweep.methods],
    }
    return {
        "name": sweep.name,
        "sweep": resolved,
        "limit": plan.limit,
        "wanted": [[chunk.index, chunk.wanted] for chunk in plan.cells[0].chunks],
        "cells": [
            {"cell_key": cell.key, "target": cell.target, "method": cell.method.name, "knobs": cell.knobs}
            for cell in cells
        ],
        "scores": {cell.key: run.scores[cell.key] for cell in cells if cell.key in run.scores},
        "failures": [list(failure) for failure in run.failures],
        **run.store.run_records(
            plan.sweep_key, {**run.record, **run.workforce}, is_new=bool(run.decoded or run.scores_done)
        ),
    }


def _failure_text(run: _Run) -> str:
    label, sample_id, error = run.failures[0]
    sweep = run.plan.sweep
    return (
        f"sweep {sweep.name}: {len(run.failures)} of {run.plan.n_samples} images failed, max_failed allows "
        f"{sweep.max_failed}; the first is {sample_id} of {label} ({error}); fix the cause and run again, "
        "which retries only the failed images."
    )


def _loss_text(target: str, prompts: Mapping[str, PromptTokens]) -> str:
    """One sentence for all prompts that a target's encoder did not read whole."""
    counts = {
        "without a known token": sum(not read.read for read in prompts.values()),
        "with unknown tokens": sum(read.unknown > 0 for read in prompts.values()),
        "cut to the encoder's length": sum(read.cut > 0 for read in prompts.values()),
    }
    found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    first, read = min(prompts.items())
    return (
        f"{target}: {len(prompts)} prompts were not read whole: {found}; for instance {first} ({read.loss}); "
        "the stage says it for each image (prompt_tokens, prompt_unknown, prompt_cut)"
    )


def _run_report(run: _Run, start: float) -> RunReport:
    return _report(
        run.plan,
        run.store,
        cached=run.cached,
        decoded=run.decoded,
        failures=tuple(run.failures),
        scores_cached=run.scores_cached,
        scores_done=run.scores_done,
        wall_s=time.monotonic() - start,
    )


def _report(plan: Plan, store: Store, **values: Any) -> RunReport:
    return RunReport(plan.sweep.name, plan.sweep_key, store.root, plan.n_samples, **values)
