"""Runs of an MLflow experiment, page by page: the one query of whoever writes them and whoever reads them back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

PAGE = 1000  # runs per search


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
