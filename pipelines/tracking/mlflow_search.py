"""The experiment and its runs, page by page: the queries of whoever writes runs and whoever reads them back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mulosd.errors import EnvironmentProblem
from pipelines.tracking.tracking_uri import EXPERIMENT

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

PAGE = 1000  # runs per search


def active_experiment(client: "MlflowClient") -> str | None:
    """Id of the experiment, None where there is none; EnvironmentProblem where it was deleted and keeps its name."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None or not found.experiment_id:
        return None
    if found.lifecycle_stage == "deleted":
        raise EnvironmentProblem(
            f"the experiment {EXPERIMENT!r} was deleted there; restore it with `mlflow experiments restore "
            f"--experiment-id {found.experiment_id}` (MLFLOW_TRACKING_URI names the tracking store)"
        )
    return str(found.experiment_id)


def search_runs(client: "MlflowClient", experiment: str, filter_string: str) -> "Iterator[Run]":
    """All runs that match, oldest first, so that of two equal runs the newer one is seen last."""
    token = None
    while True:
        page = client.search_runs(
            [experiment],
            filter_string=filter_string,
            order_by=["attributes.start_time ASC"],
            max_results=PAGE,
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return
