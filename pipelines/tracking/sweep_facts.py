"""What the runs of a sweep carry in MLflow beside numbers: machine, code, and the prompts as a data set."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.store.layout import Store

DIGEST_LIMIT = 36  # characters that MLflow stores


def facts_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Tags of the parent and of every cell (filters in MLflow match runs one by one); unknown ones are left out.

    record: what `driver` wrote for the sweep.
    """
    ran, sweep = record.get("record", {}), record.get("sweep", {})
    git, machine = ran.get("git", {}), ran.get("machine", {})
    facts = {
        "mulosd.sweep": record["name"],
        "mulosd.prompts": sweep.get("prompts"),
        "mulosd.base_seed": sweep.get("base_seed"),
        "mulosd.device": sweep.get("device"),
        "mulosd.dtype": sweep.get("dtype"),
        "mulosd.executor": ran.get("executor"),
        "mulosd.processor": machine.get("processor"),
        "mulosd.ray_job_id": ran.get("job"),
        "mulosd.diff_sha256": git.get("diff_sha256"),
        "mulosd.dirty": str(bool(git["diff_sha256"])).lower() if git.get("diff_sha256") is not None else None,
        "mlflow.source.git.commit": git.get("commit"),
        **{f"mulosd.version.{name}": value for name, value in ran.get("versions", {}).items()},
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def cell_facts(record: Mapping[str, Any], made: Mapping[str, Any], versions: Sequence[str]) -> dict[str, str]:
    """Tags of a cell: those of its sweep, with the machine and the code that made its images.

    made: the record in its cell.json. versions: of the code, as its chunks say; the commit is `mixed` if they differ.
    """
    facts = facts_of({**record, "record": made})
    if versions:
        facts["mulosd.code"] = "; ".join(versions)
    if len(versions) > 1:
        facts["mlflow.source.git.commit"] = "mixed"
    return facts


def dataset_of(store: Store, record: Mapping[str, Any]) -> dict[str, Any]:
    """The prompts of a sweep as MLflow's data set: the digest is the hash that its cell keys rest on."""
    prompts = record.get("sweep", {}).get("prompts", {})
    if not prompts or not record["cells"]:
        return {}
    digest = str(store.read_cell(record["cells"][0]["cell_key"])["config"]["prompts"])
    parts = [prompts.get("name") or prompts.get("set"), prompts.get("split")]
    wanted = sum(rows for _, rows in record["wanted"])
    return {
        "name": "/".join(str(part) for part in parts if part) or "prompts",
        "digest": digest[:DIGEST_LIMIT],
        "source": dict(prompts),
        "num_prompts": wanted // max(1, int(record["sweep"].get("images_per_prompt", 1))),
    }
