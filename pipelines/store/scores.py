"""Where scores are kept in a cell, and how finished ones are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mulosd.errors import DataError
from mulosd.files.publish import read_json, sha256_hex
from pipelines.plan.cells import key_of
from pipelines.store.layout import Store

METRICS = "metrics.json"


def score_folder(store: Store, cell_key: str, evaluator: Any) -> Path:
    """`<evaluator>-<hash>`: another version, protocol or weights never meets these numbers."""
    identity = key_of({"version": evaluator.version, "protocol": evaluator.protocol()})
    return store.cell_dir(cell_key) / "scores" / f"{evaluator.name}-{identity}"


def read_metrics(folder: Path, digest: str) -> dict[str, dict[str, Any]]:
    """Metric name -> its JSON form for one basis; DataError where the score is gone."""
    return {metric["name"]: metric for metric in read_result(folder, digest)["metrics"]}


def read_result(folder: Path, digest: str) -> dict[str, Any]:
    """What metrics.json holds for one basis; DataError where the score is gone."""
    results: dict[str, dict[str, Any]] = read_json(folder / METRICS)["results"]
    if digest not in results:
        raise DataError(f"{folder} no longer holds this sweep's score (its images were replaced); run the sweep again.")
    return results[digest]


def read_samples(folder: Path, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Scores per sample of a result (`mulosd.stage.scores`); DataError where their file is missing or damaged."""
    from mulosd.stage.read import read_bytes
    from mulosd.stage.scores import scores_in

    path = folder / result["samples"]["file"]
    data = read_bytes(path)
    if sha256_hex(data) != result["samples"]["sha256"]:
        raise DataError(f"{path} does not match metrics.json; delete the file and run the sweep again.")
    return scores_in(data)
