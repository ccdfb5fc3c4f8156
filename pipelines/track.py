"""A finished sweep in MLflow: one parent run per sweep, one child run per cell. The driver is the only writer.

In: rows from the store, which stays the source of truth. Doing it again adds nothing: runs are looked up by the tags
`mulosd.sweep_key` and `mulosd.cell_key`, and their metrics are logged again only when the numbers changed. The
tracking URI and the artifact folder are always explicit and absolute. A tracking server that is down is noted in
`outbox/`, and the next `mulosd run` or `mulosd track` catches up.
"""

import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.rows import CellRow
from mulosd.errors import DataError
from mulosd.methods import build_method
from mulosd.stage.publish import publish_json, read_json
from pipelines.compare import forwards_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger(__name__)

EXPERIMENT = "mulosd"
TAG_LIMIT = 5000  # characters that every supported server stores
TRACKED = "tracked.json"  # in the folder of the sweep: what was logged last
NOT_A_KNOB = "n/a"  # parallel coordinates need each parameter on each run
_ILLEGAL = re.compile(r"[^\w\-. :/]", re.ASCII)


@dataclass(frozen=True)
class SweepMeta:
    """Facts of a sweep that its runs carry.

    facts: copied into the tags of the parent and of every child (filters match runs one by one).
    texts: artifact name -> content (the table). files: artifacts to copy (contact sheet). note: Markdown on top.
    """

    sweep_key: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Tracked:
    """Where the sweep is logged, and how many runs of cells were written or found up to date."""

    tracking_uri: str
    parent_run_id: str
    written: int
    unchanged: int


def default_uri(store_dir: Path) -> str:
    """The SQLite file of a store, absolute."""
    return f"sqlite:///{store_dir.resolve() / 'mlflow.db'}"


def track_sweep(
    rows: Sequence[CellRow], meta: SweepMeta, *, store_dir: Path, tracking_uri: str | None = None
) -> Tracked | None:
    """Log rows and tables; None when the tracking store could not be reached (noted in the outbox, and logged)."""
    uri = tracking_uri or default_uri(store_dir)
    waiting = store_dir / "outbox" / f"{meta.sweep_key}.json"
    done = store_dir / "sweeps" / meta.sweep_key / TRACKED
    state = _digest([[(row.cell_key, metric_values(row)) for row in rows], dict(meta.texts), uri])
    if (known := _known(done, state, store_dir, uri)) is not None:
        return known

    from mlflow.exceptions import MlflowException

    try:
        tracked = _track(rows, meta, store_dir, uri)
    except (MlflowException, OSError) as error:
        publish_json(waiting, {"sweep_key": meta.sweep_key, "tracking_uri": uri, "problem": str(error)})
        log.warning("%s: not logged to MLflow (%s); `mulosd track %s` tries again.", meta.name, error, store_dir)
        return None
    waiting.unlink(missing_ok=True)
    publish_json(done, {"state": state, **asdict(tracked)})
    return tracked


def serve(store_dir: Path, *, port: int) -> None:
    """Replace this process by the MLflow server of a store, on 127.0.0.1 only; DataError where nothing is logged."""
    database = store_dir.resolve() / "mlflow.db"
    if not database.is_file():
        raise DataError(f"{database} does not exist; run `mulosd run` or `mulosd track {store_dir}` first.")
    options = {
        "--backend-store-uri": default_uri(store_dir),
        "--default-artifact-root": (store_dir.resolve() / "mlartifacts").as_uri(),
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
    }
    command = [sys.executable, "-m", "mlflow", "server", *(part for pair in options.items() for part in pair)]
    os.execv(sys.executable, command)


def metric_values(row: CellRow) -> dict[str, float]:
    """MLflow-legal name -> value of all numbers of a row; metrics without a value are left out."""
    return {_ILLEGAL.sub("_", name): float(value) for name, value in _metrics(row) if value is not None}


def params_of(row: CellRow, names: Sequence[str]) -> dict[str, str]:
    """target, method and every knob in `names` with its resolved value, or n/a where the method has none."""
    knobs = _resolved(row)
    values = {name: _canonical(knobs[name]) if name in knobs else NOT_A_KNOB for name in names}
    return {"target": row.target, "method": row.method, **values}


def _known(path: Path, state: str, store_dir: Path, uri: str) -> Tracked | None:
    """What was logged last time when it is this very state: spares the seconds that MLflow takes to load."""
    if not path.exists() or (uri == default_uri(store_dir) and not (store_dir / "mlflow.db").exists()):
        return None
    record = read_json(path)
    if record["state"] != state:
        return None
    return Tracked(uri, record["parent_run_id"], 0, record["written"] + record["unchanged"])


def _track(rows: Sequence[CellRow], meta: SweepMeta, store_dir: Path, uri: str) -> Tracked:
    from mlflow.tracking import MlflowClient

    # A new database announces each migration on stderr.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=uri)
    experiment = _experiment(client, store_dir)
    parent = _find_or_create(
        client, experiment, {"mulosd.sweep_key": meta.sweep_key, "mulosd.kind": "sweep"}, meta.name
    )
    knob_names = sorted({name for row in rows for name in _resolved(row)})
    written = 0
    children = {}
    for row in rows:
        tags = {
            "mulosd.sweep_key": meta.sweep_key,
            "mulosd.cell_key": row.cell_key,
            "mulosd.kind": "cell",
            "mlflow.parentRunId": parent,
        }
        child = _find_or_create(client, experiment, tags, f"{row.target} {row.label}")
        written += _log_cell(client, child, row, meta, params_of(row, knob_names))
        children[f"{row.target} {row.label}"] = child
    _log_sweep(client, experiment, parent, meta, children)
    return Tracked(uri, parent, written, len(rows) - written)


def _experiment(client: "MlflowClient", store_dir: Path) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    artifacts = store_dir.resolve() / "mlartifacts"
    return str(client.create_experiment(EXPERIMENT, artifact_location=artifacts.as_uri()))


def _find_or_create(client: "MlflowClient", experiment: str, tags: Mapping[str, str], name: str) -> str:
    """Id of the run with these tags; a new one where there is none."""
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    runs = client.search_runs([experiment], filter_string=query, max_results=1)
    if runs:
        return str(runs[0].info.run_id)
    return str(client.create_run(experiment, tags=dict(tags), run_name=name).info.run_id)


def _log_cell(client: "MlflowClient", run_id: str, row: CellRow, meta: SweepMeta, params: Mapping[str, str]) -> bool:
    """Log what changed since the last time; False when nothing did."""
    from mlflow.entities import Metric, Param, RunTag

    values = metric_values(row)
    digest = _digest([values, params])
    if client.get_run(run_id).data.tags.get("mulosd.metrics_sha") == digest:
        return False
    missing = {name: metric.get("reason", "") for name, metric in row.metrics.items() if metric.get("value") is None}
    tags = {**meta.facts, "mulosd.missing": json.dumps(missing, ensure_ascii=False)[:TAG_LIMIT]}
    now, step = int(time.time() * 1000), _num_samples(row)
    client.log_batch(
        run_id,
        metrics=[Metric(name, value, now, step) for name, value in sorted(values.items())],
        params=[Param(name, value) for name, value in sorted(params.items())],
        tags=[RunTag(name, value) for name, value in sorted(tags.items())],
    )
    # The digest comes last: a run that stopped half-way is logged again.
    client.set_tag(run_id, "mulosd.metrics_sha", digest)
    client.set_terminated(run_id)
    return True


def _log_sweep(
    client: "MlflowClient", experiment: str, run_id: str, meta: SweepMeta, children: Mapping[str, str]
) -> None:
    note = _note(meta, experiment, children)
    content = [asdict(meta), note, {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in meta.files}]
    digest = _digest(content)
    if client.get_run(run_id).data.tags.get("mulosd.content_sha") == digest:
        return
    for name, text in meta.texts.items():
        client.log_text(run_id, text, name)
    for path in meta.files:
        client.log_artifact(run_id, str(path))
    for name, value in {**meta.facts, "mlflow.note.content": note, "mulosd.content_sha": digest}.items():
        client.set_tag(run_id, name, value)
    client.set_terminated(run_id)


def _note(meta: SweepMeta, experiment: str, children: Mapping[str, str]) -> str:
    """Markdown of the parent: its note and links to the cells (the page of a run shows no links down)."""
    links = "\n".join(f"- [{name}](#/experiments/{experiment}/runs/{run_id})" for name, run_id in children.items())
    whole = f"{meta.note}\n\n{links}\n"
    return whole if len(whole) <= TAG_LIMIT else f"See the artifacts for the table.\n\n{links}"[:TAG_LIMIT]


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


def _resolved(row: CellRow) -> dict[str, Any]:
    return dict(vars(build_method(row.method, row.knobs)))


def _num_samples(row: CellRow) -> int:
    return max((len(values) for values in row.counters.values()), default=0)


def _canonical(value: Any) -> str:
    """One form per value: MLflow compares parameters as strings."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
