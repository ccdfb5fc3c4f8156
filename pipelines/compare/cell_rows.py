"""The results of a sweep as one JSON file: what MLflow keeps so that its tables are those of the store.

Per cell: sample ids once, then one list per counter and per metric with values per sample, null where a sample has
none. Numbers are written as Python writes them, so that they come back as the very same numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.rows import CellRow
from mulosd.errors import DataError
from mulosd.files.publish import canonical_json

FILE_NAME = "rows.json"
VERSION = 1


@dataclass(frozen=True)
class SweepResults:
    """A finished sweep as tables need it, whatever it was read from. notes: sentences for the foot of its table."""

    sweep_key: str
    name: str
    rows: tuple[CellRow, ...]
    notes: tuple[str, ...] = ()


def encode(results: SweepResults) -> bytes:
    """The file's content; equal results give equal bytes."""
    content = {
        "version": VERSION,
        "sweep_key": results.sweep_key,
        "name": results.name,
        "notes": list(results.notes),
        "cells": [_cell(row) for row in results.rows],
    }
    return canonical_json(content)


def decode(content: Any, where: str) -> SweepResults:
    """The results of a parsed file; DataError naming `where` when it has another version or shape."""
    if not isinstance(content, dict) or content.get("version") != VERSION:
        found = content.get("version") if isinstance(content, dict) else None
        raise DataError(
            f"{where}: version {found!r} of {FILE_NAME} cannot be read, only {VERSION}; log the sweep again."
        )
    try:
        rows = tuple(_row(cell) for cell in content["cells"])
        return SweepResults(content["sweep_key"], content["name"], rows, tuple(content["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {FILE_NAME} is damaged ({error!r}); log the sweep again.") from error


def _cell(row: CellRow) -> dict[str, Any]:
    samples = sorted({s for values in _series(row) for s in values})
    metrics = {
        name: {**metric, "per_sample": _column(metric.get("per_sample", {}), samples)}
        for name, metric in row.metrics.items()
    }
    return {
        "cell_key": row.cell_key,
        "target": row.target,
        "method": row.method,
        "knobs": row.knobs,
        "n_target_tokens": row.n_target_tokens,
        "samples": samples,
        "counters": {name: _column(values, samples) for name, values in row.counters.items()},
        "metrics": metrics,
        "latency": row.latency,
        **({"versions": list(row.versions)} if row.versions else {}),
    }


def _row(cell: Mapping[str, Any]) -> CellRow:
    samples = cell["samples"]
    metrics = {
        name: {**metric, "per_sample": _values(metric["per_sample"], samples)}
        for name, metric in cell["metrics"].items()
    }
    counters = {name: _values(column, samples) for name, column in cell["counters"].items()}
    return CellRow(
        cell["cell_key"],
        cell["target"],
        cell["method"],
        cell["knobs"],
        cell["n_target_tokens"],
        metrics,
        counters,
        cell["latency"],
        tuple(cell.get("versions", ())),
    )


def _series(row: CellRow) -> list[Mapping[str, float]]:
    return [*row.counters.values(), *(metric.get("per_sample", {}) for metric in row.metrics.values())]


def _column(values: Mapping[str, float], samples: Sequence[str]) -> list[float | None]:
    """One value per sample; [] where there is none at all."""
    return [values.get(sample) for sample in samples] if values else []


def _values(column: Sequence[float | None], samples: Sequence[str]) -> dict[str, float]:
    pairs = zip(samples, column, strict=True) if column else ()
    return {sample: value for sample, value in pairs if value is not None}
