"""Scores of a cell: chunk states, cached by the content of the chunk, merged and finalised into metrics.json.

    scores/<evaluator>-<hash(version, protocol)>/  chunk-00000.state ..., manifest.json, metrics.json

metrics.json keeps one result per basis (the exact chunks and rows it rests on), because sweeps with different
limits share cells. Results whose chunks were replaced are dropped with them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.types import Metric
from mulosd.errors import DataError
from mulosd.stage.manifest import MANIFEST
from mulosd.stage.publish import publish_json, read_json
from pipelines.executor import resolve
from pipelines.plan import Cell, key_of
from pipelines.scoring import EvaluatorSpec, ScoreTask, StateReport, load_state
from pipelines.store import Store

METRICS = "metrics.json"


@dataclass(frozen=True)
class ScoreJob:
    """One evaluator on one cell: its folder, the basis wanted, and the evaluator that finalises."""

    cell: Cell
    spec: EvaluatorSpec
    evaluator: Any
    folder: Path
    basis: tuple[tuple[int, str, int], ...]  # (chunk, sha256 of its file, rows used) in chunk order

    @property
    def digest(self) -> str:
        """Identity of the basis inside metrics.json."""
        return key_of([list(part) for part in self.basis])


def score_jobs(
    store: Store, cells: Sequence[Cell], specs_of: Callable[[Cell], Sequence[EvaluatorSpec]]
) -> list[ScoreJob]:
    """The jobs of all evaluators on all cells, done or not."""
    built: dict[EvaluatorSpec, Any] = {}
    jobs = []
    for cell in cells:
        for spec in specs_of(cell):
            if spec not in built:
                built[spec] = resolve(spec.builder)(spec.name, **dict(spec.context))
            folder = score_folder(store, cell.key, built[spec])
            jobs.append(ScoreJob(cell, spec, built[spec], folder, basis_of(store, cell)))
    return jobs


def score_folder(store: Store, cell_key: str, evaluator: Any) -> Path:
    """`<evaluator>-<hash>`: another version, protocol or weights never meets these numbers."""
    identity = key_of({"version": evaluator.version, "protocol": evaluator.protocol()})
    return store.cell_dir(cell_key) / "scores" / f"{evaluator.name}-{identity}"


def basis_of(store: Store, cell: Cell) -> tuple[tuple[int, str, int], ...]:
    """What a score of the cell rests on: every wanted chunk and how many of its rows."""
    entries = store.entries(cell.key)
    missing = [chunk.index for chunk in cell.chunks if chunk.index not in entries]
    if missing:
        raise DataError(f"cell {cell.key} lacks chunk {missing[0]}; run the sweep again to decode it.")
    return tuple((chunk.index, entries[chunk.index].sha256, chunk.wanted) for chunk in cell.chunks)


def is_scored(job: ScoreJob) -> bool:
    """Whether metrics.json holds the result on this basis."""
    return (job.folder / METRICS).exists() and job.digest in read_json(job.folder / METRICS)["results"]


def score_tasks(store: Store, job: ScoreJob) -> Iterator[ScoreTask]:
    """The chunks of a job that have no current state."""
    current = _states(job.folder)
    entries = store.entries(job.cell.key)
    for part in job.basis:
        index, _, rows = part
        name = f"chunk-{index:05d}.state"
        if name not in current or current[name].basis != part or not (job.folder / name).exists():
            yield ScoreTask(
                job.cell.key,
                job.cell.label,
                job.spec,
                index,
                str(store.chunk_path(job.cell.key, index)),
                entries[index],
                rows,
                str(job.folder / name),
            )


def record_state(report: StateReport, folder: Path) -> None:
    """Add a published state to the folder's manifest."""
    states = {**_states(folder), report.name: report}
    files = {
        name: {"index": s.index, "chunk_sha256": s.chunk_sha256, "rows": s.rows, "sha256": s.sha256}
        for name, s in states.items()
    }
    publish_json(folder / MANIFEST, {"files": files})


def finish_job(job: ScoreJob, *, current_chunks: frozenset[str]) -> list[Metric]:
    """Merge the states in chunk order, finalise and publish metrics.json.

    current_chunks: digests of the cell's chunk files; results that rest on others are dropped.
    """
    states = _states(job.folder)
    merged: Any = None
    for position, part in enumerate(job.basis):
        report = states[f"chunk-{part[0]:05d}.state"]
        if report.basis != part:
            raise DataError(f"{job.folder / report.name} belongs to another chunk content; run the sweep again.")
        modules = (type(job.evaluator).__module__,)
        state = load_state(job.folder / report.name, report.sha256, extra_modules=modules)
        merged = state if position == 0 else job.evaluator.merge(merged, state)
    metrics: list[Metric] = job.evaluator.finalize(merged)
    path = job.folder / METRICS
    old = read_json(path)["results"] if path.exists() else {}
    results = {k: r for k, r in old.items() if {part[1] for part in r["basis"]} <= current_chunks}
    results[job.digest] = {
        "basis": [list(part) for part in job.basis],
        "metrics": [metric.to_json() for metric in metrics],
    }
    header = {"evaluator": job.evaluator.name, "version": job.evaluator.version, "protocol": job.evaluator.protocol()}
    publish_json(path, {**header, "results": results})
    return metrics


def read_metrics(folder: Path, digest: str) -> dict[str, dict[str, Any]]:
    """Metric name -> its JSON form for one basis; DataError where the score is gone."""
    results = read_json(folder / METRICS)["results"]
    if digest not in results:
        raise DataError(f"{folder} no longer holds this sweep's score (its images were replaced); run the sweep again.")
    return {metric["name"]: metric for metric in results[digest]["metrics"]}


def _states(folder: Path) -> dict[str, StateReport]:
    if not (folder / MANIFEST).exists():
        return {}
    files = read_json(folder / MANIFEST)["files"]
    return {name: StateReport(name=name, **entry) for name, entry in files.items()}
