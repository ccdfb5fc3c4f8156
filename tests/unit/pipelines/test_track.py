"""Tracking against a real SQLite store: two levels of runs, and doing it again adds nothing."""

import dataclasses
import logging
from pathlib import Path

import pytest

from dashboards.rows import CellRow
from pipelines.track import NOT_A_KNOB, SweepMeta, metric_values, params_of, serve, track_sweep

IDS = ["geneval/0/0", "geneval/1/0"]


def row(key: str, method: str, value: float | None = 0.5, **knobs: object) -> CellRow:
    metrics = {
        "geneval/overall": {"value": value, "interval": [0.25, 0.75] if value else None, "n": 2, "reason": "no colours"}
    }
    return CellRow(key, "tiny-mid", method, knobs, 256, metrics, {"forwards_verify": dict.fromkeys(IDS, 8.0)})


def meta(tmp_path: Path, **changes: object) -> SweepMeta:
    sheet = tmp_path / "sheet.png"
    sheet.write_bytes(b"png")
    base = SweepMeta("sweep1", "toy", {"mulosd.sweep": "toy"}, {"table.md": "| a |\n"}, (sheet,), "the note")
    return dataclasses.replace(base, **changes)


def test_metrics_have_legal_names_and_no_nulls() -> None:
    values = metric_values(row("a", "ar"))
    assert values["geneval/overall"] == 0.5
    assert values["geneval/overall_ci_lo"] == 0.25
    assert values["speed/forwards_per_image"] == 8.0
    odd = CellRow("a", "t", "ar", {}, 4, {"fid@5k,x": {"value": 1.0, "n": 1}})
    assert metric_values(odd)["fid_5k_x"] == 1.0
    assert "geneval/overall" not in metric_values(row("a", "ar", None))


def test_params_name_every_knob_of_the_sweep_with_its_default() -> None:
    params = params_of(row("a", "mulosd", tau=0.2), ["tau", "radius", "window"])
    assert params == {"target": "tiny-mid", "method": "mulosd", "tau": "0.2", "radius": "1", "window": NOT_A_KNOB}


def test_sweep_is_tracked_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mlflow.tracking import MlflowClient

    rows = [row("c1", "ar"), row("c2", "mulosd", None, tau=0.2)]
    first = track_sweep(rows, meta(tmp_path), store_dir=tmp_path)
    assert first is not None
    assert (first.written, first.unchanged) == (2, 0)
    assert first.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert str(tmp_path) == str(tmp_path.resolve())

    again = track_sweep(rows, meta(tmp_path), store_dir=tmp_path)
    (tmp_path / "sweeps" / "sweep1" / "tracked.json").unlink()
    and_again = track_sweep(rows, meta(tmp_path), store_dir=tmp_path)
    for repeated in (again, and_again):
        assert repeated is not None
        assert (repeated.parent_run_id, repeated.written, repeated.unchanged) == (first.parent_run_id, 0, 2)

    client = MlflowClient(tracking_uri=first.tracking_uri)
    experiment = client.get_experiment_by_name("mulosd")
    assert experiment.artifact_location == (tmp_path / "mlartifacts").as_uri()
    runs = {r.data.tags.get("mulosd.cell_key", "parent"): r for r in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["c1", "c2", "parent"]
    assert all(run.info.status == "FINISHED" for run in runs.values())
    assert runs["c1"].data.tags["mlflow.parentRunId"] == first.parent_run_id
    assert runs["c1"].data.tags["mulosd.sweep"] == "toy"
    assert runs["c2"].data.params["tau"] == "0.2"
    assert "no colours" in runs["c2"].data.tags["mulosd.missing"]
    assert len(client.get_metric_history(runs["c1"].info.run_id, "geneval/overall")) == 1
    assert runs["c1"].info.run_id in runs["parent"].data.tags["mlflow.note.content"]
    assert {a.path for a in client.list_artifacts(first.parent_run_id)} == {"table.md", "sheet.png"}

    changed = track_sweep([row("c1", "ar", 0.75), rows[1]], meta(tmp_path), store_dir=tmp_path)
    assert changed is not None
    assert (changed.written, changed.unchanged) == (1, 1)
    assert client.get_run(runs["c1"].info.run_id).data.metrics["geneval/overall"] == 0.75

    _check_unreachable_store(tmp_path, rows, caplog)


def _check_unreachable_store(tmp_path: Path, rows: list[CellRow], caplog: pytest.LogCaptureFixture) -> None:
    """A store that cannot be opened is noted in the outbox, and the note goes when it works again."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, logger="pipelines.track"):
        down = track_sweep(rows, meta(tmp_path), store_dir=tmp_path, tracking_uri=f"sqlite:///{tmp_path}/file/x.db")
    assert down is None
    assert "tries again" in caplog.text
    assert [p.name for p in (tmp_path / "outbox").iterdir()] == ["sweep1.json"]
    assert track_sweep(rows, meta(tmp_path), store_dir=tmp_path) is not None
    assert list((tmp_path / "outbox").iterdir()) == []


def test_ui_needs_a_tracked_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        serve(tmp_path, port=5000)
