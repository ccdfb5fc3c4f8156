"""A small sweep to log, and what MLflow holds of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from dashboards.rows import CellRow
from pipelines.tracking.track import SweepMeta
from pipelines.tracking.tracking_uri import default_uri

DATASET = {"name": "geneval", "digest": "0123456789abcdef", "source": {"name": "geneval"}, "num_prompts": 2}


def row(key: str, method: str, value: float | None = 0.5, num: int = 2, **knobs: object) -> CellRow:
    metric = {"value": value, "interval": [0.25, 0.75] if value else None, "n": num, "reason": "no colours"}
    counters = {"forwards_verify": dict.fromkeys([f"geneval/{i}/0" for i in range(num)], 8.0)}
    return CellRow(
        key, "tiny-mid", method, knobs, 256, {"geneval/overall": {**metric, "direction": "higher"}}, counters
    )


def rows() -> list[CellRow]:
    return [row("c1", "ar"), row("c2", "mulosd", None, tau=0.2)]


def meta(folder: Path, **changes: object) -> SweepMeta:
    sheet = folder / "sheet.png"
    sheet.write_bytes(b"png")
    facts, texts = {"mulosd.sweep": "toy"}, {"table.md": "| a |\n"}
    base = SweepMeta("sweep1", "toy", facts, texts, (sheet,), "the note", DATASET)
    return dataclasses.replace(base, **changes)


def logged(store: Path) -> dict[str, Any]:
    """Everything that a user sees, by cell key: params, tags without times, and the whole history of each metric."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=default_uri(store))
    experiment = client.get_experiment_by_name("mulosd")
    found: dict[str, Any] = {}
    for run in client.search_runs([experiment.experiment_id]):
        key = run.data.tags.get("mulosd.cell_key", "parent")
        assert key not in found, f"two runs for {key}"
        history = {
            name: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        inputs = [(i.dataset.name, i.dataset.digest) for i in run.inputs.dataset_inputs]
        artifacts = sorted(a.path for a in client.list_artifacts(run.info.run_id))
        found[key] = {
            "id": run.info.run_id,
            "status": run.info.status,
            "params": run.data.params,
            "tags": run.data.tags,
            "history": history,
            "inputs": inputs,
            "artifacts": artifacts,
        }
    return found


def without_ids(state: dict[str, Any]) -> dict[str, Any]:
    """What two records of the same sweep share."""
    ids = {value["id"]: key for key, value in state.items()}
    text = json.dumps({key: {k: v for k, v in value.items() if k != "id"} for key, value in state.items()})
    for run_id, key in ids.items():
        text = text.replace(run_id, key)
    result: dict[str, Any] = json.loads(text)
    return result
