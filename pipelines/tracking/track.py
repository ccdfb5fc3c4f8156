"""A finished sweep in MLflow: one parent run per sweep, one child run per cell. The driver is the only writer.

In: rows from the store, which stays the source of truth. They go into the outbox first and from there to the tracking
store; a server that is down or refuses leaves them waiting, and `mulosd sync` or `mulosd track` logs them. Doing it
again adds nothing. The tracking URI and the artifact folder are always explicit and absolute.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dashboards.numbers import NOT_A_KNOB
from dashboards.rows import CellRow
from mulosd.errors import ConfigError, EnvironmentProblem
from mulosd.files.publish import sha256_hex
from mulosd.methods import all_knobs
from pipelines.compare.compare import forwards_of
from pipelines.store.layout import Store
from pipelines.tracking.errors import said, tracking_errors
from pipelines.tracking.mlflow_writer import SETTINGS, TAG_LIMIT, Writer
from pipelines.tracking.outbox import SWEEP, Entry, Outbox, locked
from pipelines.tracking.sqlite_file import prepare
from pipelines.tracking.track_pictures import grid_samples, write_pictures
from pipelines.tracking.tracking_uri import backend_of, check_uri, default_uri, problem_of, public_uri, sqlite_path

log = logging.getLogger(__name__)

BATCH = 200  # entries between two notes of what was logged
_ILLEGAL = re.compile(r"[^\w\-. :/]", re.ASCII)


@dataclass(frozen=True)
class SweepMeta:
    """Facts of a sweep that its runs carry.

    facts: copied into the tags of the parent and of every child (filters match runs one by one).
    texts: artifact name -> content (the table). files: artifacts to copy (contact sheet). note: Markdown on top.
    dataset: name, digest, source and num_prompts of the prompts, or {}. cell_facts: cell key -> what its
    run carries in place of `facts`.
    """

    sweep_key: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    note: str = ""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    cell_facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tracked:
    """Where the sweep is logged, and how many runs of cells were written or found up to date.

    is_checked: whether the tracking store was asked; nothing is asked where the outbox notes everything as logged.
    """

    tracking_uri: str
    parent_run_id: str
    written: int
    unchanged: int
    is_checked: bool = True


@dataclass(frozen=True)
class NotLogged:
    """Why the tracking store has not everything; what is missing waits in the outbox."""

    problem: str


def log_sweep(
    rows: Sequence[CellRow],
    meta: SweepMeta,
    *,
    store_dir: Path,
    tracking_uri: str | None = None,
    every: bool = False,
) -> Tracked | NotLogged:
    """Log rows and tables. every: ask the tracking store about each run, also about what is noted as logged."""
    uri = check_uri(tracking_uri or default_uri(store_dir))
    outbox = Outbox(store_dir / "outbox")
    with outbox.lock():
        outbox.add(meta.sweep_key, contents_of(rows, meta, Store(store_dir)), uri=public_uri(uri))
        return _replay(outbox, meta.sweep_key, uri, store_dir, every=every)


def track_sweep(
    rows: Sequence[CellRow], meta: SweepMeta, *, store_dir: Path, tracking_uri: str | None = None
) -> Tracked | None:
    """`log_sweep`, with a warning and None where not everything could be logged."""
    result = log_sweep(rows, meta, store_dir=store_dir, tracking_uri=tracking_uri)
    if isinstance(result, NotLogged):
        log.warning(
            "%s: not logged to MLflow (%s); `mulosd sync %s` logs it later.", meta.name, result.problem, store_dir
        )
        return None
    return result


def sync(store_dir: Path, *, tracking_uri: str | None = None, every: bool = False) -> Iterator[tuple[str, Tracked]]:
    """Replay what waits in the outbox of a store: (sweep key, what was logged) for each sweep.

    tracking_uri: where to; by default where each sweep was meant to go. every: also what is noted as logged, for a
    tracking store that lost it. EnvironmentProblem when the tracking store does not answer; the rest keeps waiting.
    """
    outbox = Outbox(store_dir / "outbox")
    with outbox.lock():
        for sweep_key in outbox.sweep_keys():
            uri = check_uri(tracking_uri or _wanted_uri(outbox, sweep_key))
            result = _replay(outbox, sweep_key, uri, store_dir, every=every)
            if isinstance(result, NotLogged):
                raise EnvironmentProblem(
                    f"sweep {sweep_key} could not be logged to {public_uri(uri)} ({result.problem}); "
                    "nothing is lost: run the same command when the cause is mended."
                )
            yield sweep_key, result


def contents_of(rows: Sequence[CellRow], meta: SweepMeta, store: Store) -> dict[str, dict[str, Any]]:
    """Cell key -> what its run is told; the entry of the sweep comes last, since it links to its cells."""
    knob_names = sorted({name for row in rows for name in _resolved(row)})
    shown = grid_samples(_sample_ids(rows), len(rows))
    contents = {row.cell_key: _cell_content(row, meta, knob_names, shown, store) for row in rows}
    contents[SWEEP] = {
        "name": meta.name,
        "tags": {**meta.facts, "mulosd.directions": _directions(rows)},
        "texts": dict(meta.texts),
        "files": {str(path.absolute()): sha256_hex(path.read_bytes()) for path in meta.files},
        "note": meta.note,
        "cells": [{"cell_key": row.cell_key, "name": _run_name(row)} for row in rows],
        "dataset": dict(meta.dataset),
    }
    return contents


def metric_values(row: CellRow) -> dict[str, float]:
    """MLflow-legal name -> value of all numbers of a row; metrics without a value are left out."""
    return {_legal(name): float(value) for name, value in _metrics(row) if value is not None}


def params_of(row: CellRow, names: Sequence[str]) -> dict[str, str]:
    """target, method and every knob in `names` with its resolved value, or n/a where the method has none.

    Parallel coordinates need each parameter on each run.
    """
    knobs = _resolved(row)
    values = {name: _canonical(knobs[name]) if name in knobs else NOT_A_KNOB for name in names}
    return {"target": row.target, "method": row.method, **values}


def _replay(outbox: Outbox, sweep_key: str, uri: str, store_dir: Path, *, every: bool = False) -> Tracked | NotLogged:
    """Log the entries of a sweep that `uri` does not have yet. Loads MLflow only when there are any."""
    backend = backend_of(uri)
    pending = outbox.entries(sweep_key) if every else outbox.pending(sweep_key, backend)
    last = {entry.cell_key: entry for entry in outbox.entries(sweep_key)}
    num_cells = len(set(last) - {SWEEP})
    if not pending and backend is not None:
        parent = outbox.done(sweep_key, backend)[last[SWEEP].id]
        return Tracked(public_uri(uri), parent, 0, num_cells, is_checked=False)
    problem = problem_of(uri)
    if problem is not None:
        return NotLogged(problem)
    for name, value in SETTINGS.items():  # before MLflow is loaded, which reads some of them then
        os.environ.setdefault(name, value)
    # It announces each migration, and prints the traceback of an error that is reported below.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    try:
        parent, written = _write(outbox, sweep_key, pending, last, uri, store_dir)
    except ImportError as error:
        raise EnvironmentProblem(
            f"the tracking store {public_uri(uri)} needs a database driver ({error}); install it, for Postgres with "
            "`pip install psycopg2-binary`."
        ) from error
    except tracking_errors() as error:
        return NotLogged(said(error, uri))
    return Tracked(public_uri(uri), parent, written, num_cells - written)


def _write(
    outbox: Outbox, sweep_key: str, pending: Sequence[Entry], last: Mapping[str, Entry], uri: str, store_dir: Path
) -> tuple[str, int]:
    """Log entries and note them; returns the parent's run id and how many cells were written.

    What a run was told last stands for all that it was told before.
    """
    store = Store(store_dir)
    artifacts = store.root.resolve() / "mlartifacts"
    with ExitStack() as stack:
        if (database := sqlite_path(uri)) is not None:
            # Two processes that make one new file at a time both fail, and stores may share a file.
            stack.enter_context(locked(database.with_name(f"{database.name}.lock")))
            prepare(database, artifacts)
        writer = Writer(uri, artifacts, sweep_key, partial(write_pictures, store))
        backend = backend_of(uri)
        if backend is None:
            raise EnvironmentProblem(f"{public_uri(uri)} answers and does not keep what it is sent")
        written: set[str] = set()
        for start in range(0, len(pending), BATCH):
            done: list[tuple[Entry, str]] = []
            try:
                for entry in pending[start : start + BATCH]:
                    if writer.is_known(last[entry.cell_key]):
                        done.append((entry, writer.run_id(entry)))
                        continue
                    written.add(entry.cell_key)
                    done.append((entry, writer.log(entry, params=last[entry.cell_key].content.get("params", {}))))
            finally:
                outbox.acknowledge(sweep_key, backend, done)
        return writer.parent, len(written - {SWEEP})


def _wanted_uri(outbox: Outbox, sweep_key: str) -> str:
    """Where the sweep was meant to be logged when it ran last."""
    uri = outbox.entries(sweep_key)[-1].uri
    if ":***@" in uri:
        raise ConfigError(f"sweep {sweep_key} goes to {uri}, and passwords are never stored; give --tracking-uri.")
    return uri


def _cell_content(
    row: CellRow, meta: SweepMeta, knob_names: Sequence[str], shown: Sequence[str], store: Store
) -> dict[str, Any]:
    missing = {name: metric.get("reason", "") for name, metric in row.metrics.items() if metric.get("value") is None}
    manifest = store.cell_dir(row.cell_key) / "manifest.json"
    is_staged = manifest.exists()
    stage = {"mulosd.stage": str(manifest.parent)} if is_staged else {}
    if is_staged:
        stage["mulosd.stage_sha"] = sha256_hex(manifest.read_bytes())[:16]
    return {
        "name": _run_name(row),
        "tags": {
            **meta.cell_facts.get(row.cell_key, meta.facts),
            **stage,
            "mulosd.missing": json.dumps(missing, ensure_ascii=False)[:TAG_LIMIT],
            "mulosd.directions": _directions([row]),
        },
        "params": params_of(row, knob_names),
        "metrics": metric_values(row),
        "step": len(_sample_ids([row])),
        "dataset": dict(meta.dataset),
        "pictures": list(shown) if is_staged else [],
    }


def _metrics(row: CellRow) -> Iterator[tuple[str, float | None]]:
    for name, metric in row.metrics.items():
        yield name, metric.get("value")
        interval = metric.get("interval") or (None, None)
        yield f"{name}_ci_lo", interval[0]
        yield f"{name}_ci_hi", interval[1]
        yield f"{name}_n", metric.get("n")
    for name, values in row.counters.items():
        if values:
            yield f"counters/{name}_per_image", sum(values.values()) / len(values)
    forwards = forwards_of(row)
    if forwards:
        yield "speed/forwards_per_image", sum(forwards.values()) / len(forwards)
    yield from ((f"speed/{name}", value) for name, value in row.latency.items() if isinstance(value, int | float))


def _directions(rows: Sequence[CellRow]) -> str:
    """JSON: metric name -> higher or lower is better; metrics without a direction are left out."""
    found = {"speed/forwards_per_image": "lower", "speed/speed_up": "higher", "speed/median_s": "lower"}
    for row in rows:
        found |= {_legal(name): metric.get("direction", "none") for name, metric in row.metrics.items()}
    return json.dumps({name: way for name, way in sorted(found.items()) if way != "none"})[:TAG_LIMIT]


def _sample_ids(rows: Sequence[CellRow]) -> list[str]:
    """Sample ids of the rows in their order; a failed image is named where another row has it."""
    return list(dict.fromkeys(sample for row in rows for sample in max(row.counters.values(), key=len, default={})))


def _run_name(row: CellRow) -> str:
    return f"{row.target} {row.label}"


def _resolved(row: CellRow) -> dict[str, Any]:
    return all_knobs(row.method, row.knobs)


def _legal(name: str) -> str:
    return _ILLEGAL.sub("_", name)


def _canonical(value: Any) -> str:
    """One form per value: MLflow compares parameters as strings."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)
