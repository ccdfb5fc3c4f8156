"""Where scores are kept in a cell, and how finished ones are read."""

from pathlib import Path
from typing import Any

from mulosd.errors import DataError
from mulosd.files.publish import read_json
from pipelines.plan.cells import key_of
from pipelines.store.layout import Store

METRICS = "metrics.json"


def score_folder(store: Store, cell_key: str, evaluator: Any) -> Path:
    """`<evaluator>-<hash>`: another version, protocol or weights never meets these numbers."""
    identity = key_of({"version": evaluator.version, "protocol": evaluator.protocol()})
    return store.cell_dir(cell_key) / "scores" / f"{evaluator.name}-{identity}"


def read_metrics(folder: Path, digest: str) -> dict[str, dict[str, Any]]:
    """Metric name -> its JSON form for one basis; DataError where the score is gone."""
    results = read_json(folder / METRICS)["results"]
    if digest not in results:
        raise DataError(f"{folder} no longer holds this sweep's score (its images were replaced); run the sweep again.")
    return {metric["name"]: metric for metric in results[digest]["metrics"]}
