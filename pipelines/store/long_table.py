"""The scores of a sweep as one long table: a row per cell, metric and sample, with the method and its knobs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError
from mulosd.methods import METHODS, declared_knobs
from mulosd.methods.knobs import has_default
from pipelines.store.layout import Store
from pipelines.store.results import resolve_sweep
from pipelines.store.scores import METRICS, read_result, read_samples

SUFFIXES = (".parquet", ".csv")

Row = dict[str, Any]


def export_scores(store: Store, out: Path, sweep_key: str | None = None, *, dry_run: bool = False) -> tuple[int, int]:
    """Write the table as `out` (.parquet or .csv); (rows, columns). dry_run: read and check everything, write nothing.

    DataError where the scores of a cell are damaged or of a version that kept none per sample.
    """
    from mulosd.files.folders import refuse_package

    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: allowed are names that end in {' or '.join(SUFFIXES)}.")
    refuse_package(out)
    key = resolve_sweep(store, sweep_key)
    record = store.read_sweep(key)
    knobs = sorted({name for cell in record["cells"] for name in cell["knobs"]})
    rows = [row for cell in record["cells"] for row in _cell_rows(store, record, key, cell, knobs)]
    names = ("sweep", "sweep_key", "cell_key", "target", "method", *(f"knob_{name}" for name in knobs), *_SCORE)
    if not dry_run:
        from mulosd.stage.scores import publish_rows

        publish_rows(out, {name: [row.get(name) for row in rows] for name in names})
    return len(rows), len(names)


_SCORE = (
    "sample_id",
    "prompt_id",
    "image_index",
    "evaluator",
    "metric",
    "question",
    "value",
    "unit",
    "direction",
    "reason",
)


def _cell_rows(
    store: Store, record: Mapping[str, Any], key: str, cell: Mapping[str, Any], knobs: Sequence[str]
) -> list[Row]:
    head = {
        "sweep": record["name"],
        "sweep_key": key,
        **{name: cell[name] for name in ("cell_key", "target", "method")},
    }
    head |= {f"knob_{name}": value for name, value in _knob_values(cell, knobs).items()}
    rows: list[Row] = []
    for evaluator, (name, digest) in record["scores"].get(cell["cell_key"], {}).items():
        folder = store.cell_dir(cell["cell_key"]) / "scores" / name
        result = read_result(folder, digest)
        if "samples" not in result:
            raise DataError(
                f"{folder / METRICS} is of a version that kept no scores per sample; run the sweep again to have them."
            )
        metrics = {metric["name"]: metric for metric in result["metrics"]}
        for sample in read_samples(folder, result):
            metric = metrics[sample["metric"]]
            ids = dict(zip(("prompt_id", "image_index"), _parts(sample["sample_id"]), strict=True))
            units = {"evaluator": evaluator, "unit": metric["unit"], "direction": metric["direction"]}
            rows.append({**head, **sample, **ids, **units})
    return rows


def _knob_values(cell: Mapping[str, Any], knobs: Sequence[str]) -> dict[str, Any]:
    """Values of a cell's knobs, those at their defaults too; null where the method lacks one or is not installed."""
    declared = declared_knobs(METHODS[cell["method"]]) if cell["method"] in METHODS else {}
    defaults = {name: knob.default for name, knob in declared.items() if has_default(knob)}
    return {name: cell["knobs"].get(name, defaults.get(name)) for name in knobs}


def _parts(sample_id: str) -> tuple[str, int]:
    """(prompt id, image index) of `<benchmark>/<prompt id>/<image index>`."""
    _, prompt, index = sample_id.split("/")
    return prompt, int(index)
