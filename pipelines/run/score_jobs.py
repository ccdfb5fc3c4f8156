"""Scores of a cell: chunk states, cached by the content of the chunk, merged and finalised into metrics.json.

    scores/<evaluator>-<hash(version, protocol)>/
        chunk-00000.json ..., manifest.json, metrics.json, samples-<basis>.parquet (scores per sample)

metrics.json keeps one result per basis (the exact chunks and rows it rests on), because sweeps with different
limits share cells. Results whose chunks were replaced are dropped with them. What is damaged counts as missing and is
scored again.

An evaluator with a `source` scores nothing itself: it finalises the states of the evaluator of that name (built with
the same context), so that features are computed once per chunk for all metrics that rest on them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.types import Metric
from mulosd.errors import DataError
from mulosd.files.publish import publish_json, read_json, sha256_hex
from mulosd.stage.manifest import MANIFEST
from pipelines.plan.cells import Cell, key_of
from pipelines.store.layout import Store
from pipelines.store.scores import METRICS, score_folder
from pipelines.work.score import load_state
from pipelines.work.tasks import EvaluatorSpec, ScoreTask, StateReport, resolve

log = logging.getLogger(__name__)

PICKLED = ".state"  # ending of the states of version 0.1

Basis = tuple[tuple[int, str, int], ...]  # (chunk, sha256 of its file, rows used) in chunk order


@dataclass(frozen=True)
class ScoreJob:
    """One evaluator on one cell: its folder, the basis wanted, and the evaluator that finalises.

    states: the folder of the chunk states, another one than `folder` where the evaluator has a source. serves: the jobs
    that rest on this one's states.
    """

    cell: Cell
    spec: EvaluatorSpec
    evaluator: Any
    folder: Path
    states: Path
    basis: Basis
    serves: tuple["ScoreJob", ...] = ()

    @property
    def digest(self) -> str:
        """Identity of the basis inside metrics.json."""
        return key_of([list(part) for part in self.basis])


def score_jobs(
    store: Store,
    cells: Sequence[Cell],
    specs_of: Callable[[Cell], Sequence[EvaluatorSpec]],
    basis: Callable[[Cell], Basis],
) -> list[ScoreJob]:
    """The jobs of all evaluators on all cells, done or not, and of the sources that they share; basis: of a cell."""
    built: dict[EvaluatorSpec, Any] = {}

    def build(spec: EvaluatorSpec) -> Any:
        if spec not in built:
            built[spec] = resolve(spec.builder)(spec.name, **dict(spec.context))
        return built[spec]

    def source_of(spec: EvaluatorSpec) -> EvaluatorSpec:
        source = getattr(build(spec), "source", None)
        return spec if source is None else replace(spec, name=source)

    jobs: list[ScoreJob] = []
    for cell in cells:
        own: list[ScoreJob] = []
        served: dict[EvaluatorSpec, list[ScoreJob]] = {}
        for spec in specs_of(cell):
            source = source_of(spec)
            folder, states = (score_folder(store, cell.key, build(one)) for one in (spec, source))
            job = ScoreJob(cell, spec, build(spec), folder, states, basis(cell))
            if source == spec:
                own.append(job)
            else:
                served.setdefault(source, []).append(job)
        for source, rest in served.items():
            first = rest[0]
            shared = replace(first, spec=source, evaluator=build(source), folder=first.states, serves=tuple(rest))
            own = [job for job in own if job.spec != source]
            jobs += [shared, *rest]
        jobs += own
    return jobs


def basis_of(store: Store, cell: Cell) -> Basis:
    """What a score of the cell rests on: every wanted chunk and how many of its rows."""
    entries = store.entries(cell.key)
    missing = [chunk.index for chunk in cell.chunks if chunk.index not in entries]
    if missing:
        raise DataError(f"cell {cell.key} lacks chunk {missing[0]}; run the sweep again to decode it.")
    return tuple((chunk.index, entries[chunk.index].sha256, chunk.wanted) for chunk in cell.chunks)


def is_scored(job: ScoreJob) -> bool:
    """Whether metrics.json holds the result on this basis, and everything that it rests on is there and whole."""
    result = _results(job.folder).get(job.digest, {})
    if not _has_samples(job.folder, result) or _mapping(job.folder / MANIFEST) is None:
        return False
    return job.states != job.folder or not _stale(job)


def score_tasks(store: Store, job: ScoreJob) -> Iterator[ScoreTask]:
    """The chunks of a job that have no current state; none where another job makes them."""
    if job.states != job.folder:
        return
    entries = store.entries(job.cell.key)
    for index, _, rows in _stale(job):
        yield ScoreTask(
            job.cell.key,
            job.cell.label,
            job.spec,
            index,
            str(store.chunk_path(job.cell.key, index)),
            entries[index],
            rows,
            str(job.folder / _state_name(job, index)),
        )


def record_state(report: StateReport, folder: Path) -> None:
    """Add a published state to the folder's manifest; one of the same chunk in another form is removed."""
    states = _states(folder)
    old = [name for name, state in states.items() if state.index == report.index and name != report.name]
    states = {name: state for name, state in states.items() if name not in old} | {report.name: report}
    files = {
        name: {"index": s.index, "chunk_sha256": s.chunk_sha256, "rows": s.rows, "sha256": s.sha256}
        for name, s in states.items()
    }
    publish_json(folder / MANIFEST, {"files": files})
    for name in old:
        (folder / name).unlink(missing_ok=True)


def warn_of_pickles(jobs: Sequence[ScoreJob]) -> None:
    """Say how many states of version 0.1 the jobs make again: pickles, which are not read."""
    folders = {job.states: {part[0] for part in job.basis} for job in jobs}
    num = sum(
        name.endswith(PICKLED) and state.index in indices
        for folder, indices in folders.items()
        for name, state in _states(folder).items()
    )
    if num:
        log.warning(
            "%d score states are pickles of version 0.1, which are not read; their chunks are scored again", num
        )


def finish_job(job: ScoreJob, *, current_chunks: frozenset[str]) -> list[Metric]:
    """Merge the states in chunk order, finalise and publish metrics.json.

    current_chunks: digests of the cell's chunk files; results that rest on others are dropped.
    """
    states = _states(job.states)
    merged: Any = None
    for position, part in enumerate(job.basis):
        report = states[_state_name(job, part[0])]
        if report.basis != part:
            raise DataError(f"{job.states / report.name} belongs to another chunk content; run the sweep again.")
        state = load_state(job.states / report.name, report.sha256, job.evaluator.state)
        merged = state if position == 0 else job.evaluator.merge(merged, state)
    metrics = [metric.finite() for metric in job.evaluator.finalize(merged)]
    path = job.folder / METRICS
    old = _results(job.folder)
    results = {k: r for k, r in old.items() if {part[1] for part in r["basis"]} <= current_chunks}
    results[job.digest] = {
        "basis": [list(part) for part in job.basis],
        "metrics": [metric.to_json() for metric in metrics],
        "samples": _publish_samples(job, metrics),
    }
    header = {"evaluator": job.evaluator.name, "version": job.evaluator.version, "protocol": job.evaluator.protocol()}
    if _mapping(job.folder / MANIFEST) is None:
        publish_json(job.folder / MANIFEST, {"files": {}})  # its states are with the source
    publish_json(path, {**header, "results": results})
    kept = {result["samples"]["file"] for result in results.values() if "samples" in result}
    for old_file in job.folder.glob("samples-*.parquet"):
        if old_file.name not in kept:
            old_file.unlink()
    return metrics


def _publish_samples(job: ScoreJob, metrics: Sequence[Metric]) -> dict[str, str]:
    """Write the scores per sample beside metrics.json; the file's name and digest."""
    from mulosd.stage.scores import publish_scores

    rows = []
    for metric in metrics:
        for key, value in [*metric.per_sample.items(), *metric.missing.items()]:
            sample_id, _, question = key.partition("#")
            score = {"value": None, "reason": value} if isinstance(value, str) else {"value": value, "reason": ""}
            rows.append({"metric": metric.name, "sample_id": sample_id, "question": question, **score})
    path = job.folder / f"samples-{job.digest}.parquet"
    return {"file": path.name, "sha256": publish_scores(path, rows)}


def _has_samples(folder: Path, result: Mapping[str, Any]) -> bool:
    """Whether a result's scores per sample are there and whole; version 0.1 wrote none."""
    if "samples" not in result:
        return False
    path = folder / result["samples"]["file"]
    return path.is_file() and sha256_hex(path.read_bytes()) == result["samples"]["sha256"]


def _stale(job: ScoreJob) -> list[tuple[int, str, int]]:
    """Parts of the basis without a whole state of today's form."""
    current = _states(job.states)
    return [part for part in job.basis if not _is_current(current.get(_state_name(job, part[0])), part, job.states)]


def _is_current(state: StateReport | None, part: tuple[int, str, int], folder: Path) -> bool:
    if state is None or state.basis != part:
        return False
    path = folder / state.name
    return path.is_file() and sha256_hex(path.read_bytes()) == state.sha256


def _state_name(job: ScoreJob, index: int) -> str:
    return f"chunk-{index:05d}{job.evaluator.state.suffix}"


def _states(folder: Path) -> dict[str, StateReport]:
    """States by file name; {} where the manifest is missing or damaged: its chunks are scored again."""
    files = _entries(folder / MANIFEST, "files")
    try:
        return {name: StateReport(name=name, **entry) for name, entry in files.items()}
    except TypeError:  # whole, but not a manifest of states
        return {}


def _results(folder: Path) -> dict[str, Any]:
    """Results by the digest of their basis; {} where metrics.json is missing or damaged."""
    return _entries(folder / METRICS, "results")


def _entries(path: Path, key: str) -> dict[str, Any]:
    """The mapping under `key` of a published file; {} where the file is missing, damaged or of another form."""
    entries = (_mapping(path) or {}).get(key)
    return entries if isinstance(entries, dict) else {}


def _mapping(path: Path) -> dict[str, Any] | None:
    """The mapping in a published file; None where the file is missing, damaged or of another form."""
    try:
        value = read_json(path)
    except DataError:
        return None
    return value if isinstance(value, dict) else None
