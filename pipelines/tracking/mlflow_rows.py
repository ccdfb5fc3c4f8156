"""A logged sweep read back from MLflow, so that tables need no store. Reads only; `pipelines.tracking.track` writes.

The parent run carries `rows.json` with the values per sample, from which comparisons are worked out as from the store.
The metrics that the cells' runs show are checked against it: a table never says another number than the MLflow page.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulosd.errors import DataError, EnvironmentProblem
from pipelines.compare.cell_rows import FILE_NAME, SweepResults, decode
from pipelines.tracking.errors import said, tracking_errors
from pipelines.tracking.mlflow_search import active_experiment, search_runs
from pipelines.tracking.sqlite_file import is_half_made
from pipelines.tracking.track import metric_values
from pipelines.tracking.tracking_uri import EXPERIMENT, check_uri, problem_of, public_uri, sqlite_path

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def results_from_mlflow(uri: str, sweep_key: str | None = None) -> SweepResults:
    """The results of a logged sweep; without a key the one that was logged last.

    Raises EnvironmentProblem when nothing answers at `uri`, DataError for an unknown sweep, one that was logged without
    its rows, or a cell whose metrics in MLflow are not those of the rows.
    """
    check_uri(uri)
    _check_there(uri)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow.tracking import MlflowClient

    shown = public_uri(uri)
    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = active_experiment(client)
        if experiment is None:
            raise DataError(f"{shown}: no experiment {EXPERIMENT!r} there; log a sweep with `mulosd track DIR` first.")
        parent = _parent(client, experiment, sweep_key, shown)
        results = decode(_rows_file(client, parent, shown), f"{shown}, run {parent.info.run_id}")
        cells = _cells(client, experiment, results.sweep_key)
    except tracking_errors() as error:
        raise EnvironmentProblem(f"{shown} could not be read ({said(error, uri)}); check the tracking URI.") from error
    _check_metrics(results, cells, shown)
    return results


def _check_there(uri: str) -> None:
    """Opening a SQLite file that is not there would create it."""
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        raise DataError(f"{path} does not exist; log a sweep with `mulosd run` or `mulosd track DIR` first.")
    if path is not None and is_half_made(path):
        raise DataError(f"{path} was left half-made by a stopped run; `mulosd track DIR` makes it again.")
    if (problem := problem_of(uri)) is not None:
        raise EnvironmentProblem(f"{public_uri(uri)} does not answer ({problem}); start the server or check the URI.")


def _parent(client: "MlflowClient", experiment: str, sweep_key: str | None, shown: str) -> "Run":
    wanted = [("mulosd.kind", "sweep"), *([("mulosd.sweep_key", sweep_key)] if sweep_key else [])]
    if sweep_key is not None and not sweep_key.isalnum():
        raise DataError(f"{sweep_key!r} is not a sweep key; keys consist of letters and digits.")
    found = client.search_runs(
        [experiment],
        filter_string=" and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted),
        order_by=["attributes.end_time DESC"],
        max_results=1,
    )
    if not found:
        what = f"sweep {sweep_key}" if sweep_key else "a sweep"
        raise DataError(f"{shown}: {what} is not logged there; log it with `mulosd track DIR`.")
    return found[0]


def _rows_file(client: "MlflowClient", parent: "Run", shown: str) -> Any:
    run_id = parent.info.run_id
    if FILE_NAME not in {artifact.path for artifact in client.list_artifacts(run_id)}:
        raise DataError(f"{shown}: run {run_id} has no {FILE_NAME}; log the sweep again with `mulosd track DIR`.")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(client.download_artifacts(run_id, FILE_NAME, folder)).read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise DataError(f"{shown}: {FILE_NAME} of run {run_id} is not JSON ({error}); log the sweep again.") from error


def _cells(client: "MlflowClient", experiment: str, sweep_key: str) -> dict[str, Mapping[str, float]]:
    """Cell key -> the latest metrics of its run."""
    query = f"tags.`mulosd.sweep_key` = '{sweep_key}' and tags.`mulosd.kind` = 'cell'"
    runs = search_runs(client, experiment, query)
    return {run.data.tags["mulosd.cell_key"]: run.data.metrics for run in runs}


def _check_metrics(results: SweepResults, cells: Mapping[str, Mapping[str, float]], shown: str) -> None:
    for row in results.rows:
        logged = cells.get(row.cell_key)
        if logged is None:
            raise DataError(f"{shown}: cell {row.cell_key} ({row.label}) has no run; log the sweep again.")
        for name, value in metric_values(row).items():
            if logged.get(name) != value:
                raise DataError(
                    f"{shown}: {name} of {row.label} is {logged.get(name)} in its run and {value} in {FILE_NAME}; "
                    "log the sweep again with `mulosd track DIR`."
                )
