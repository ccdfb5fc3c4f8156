"""What can be read of a sweep while it runs and after it was stopped: the cells that it has finished."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboards.rows import CellRow
from pipelines.cli.main import cli
from pipelines.compare.report import read_results, write_report
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.results import collect
from pipelines.tracking import log_sweep
from pipelines.tracking.log_sweep import log_while_running, track
from pipelines.tracking.mlflow_rows import results_from_mlflow
from pipelines.tracking.tracking_uri import default_uri
from tests.fakes import toy_sweep


def counted(rows: tuple[CellRow, ...]) -> list[tuple[str, int, bool]]:
    """Label, images and whether there are scores, of each row."""
    return [(row.label, len(row.counters["cycles"]), bool(row.metrics)) for row in rows]


def test_cells_can_be_read_as_they_finish(tmp_path: Path) -> None:
    seen: list[tuple[str, list[tuple[str, int, bool]]]] = []

    def look(key: str) -> None:
        results = read_results(Store.existing(tmp_path))
        assert results.sweep_key == key
        assert Store.existing(tmp_path).sweep_keys() == []
        seen.append((results.notes[0], counted(results.rows)))

    run_sweep(toy_sweep(), out=tmp_path, finished=look)
    assert [note for note, _ in seen] == [
        f"Unfinished: {decoded} of 3 cells are decoded, {scored} of them scored."
        for decoded, scored in ((1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
    ]
    assert seen[0][1] == [("ar", 10, False)]
    assert seen[3][1] == [("ar", 10, True), *((f"mulosd pool_k=2 tau={tau}", 10, False) for tau in (0.05, 0.2))]
    store = Store.existing(tmp_path)
    assert not any("Unfinished" in note for note in read_results(store).notes)
    assert list(read_results(store).rows) == collect(store)
    assert all(is_scored for _, _, is_scored in counted(read_results(store).rows))
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert {path.name for path in folder.iterdir()} == {"progress.json", "sweep.json"}
    seen.clear()
    run_sweep(toy_sweep(), out=tmp_path, finished=look)
    assert seen == []


def test_a_stopped_sweep_shows_what_it_has_until_it_is_continued(tmp_path: Path) -> None:
    def stop(key: str) -> None:
        raise KeyboardInterrupt

    run_sweep(toy_sweep(), out=tmp_path, limit=3)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(toy_sweep(), out=tmp_path, finished=stop)
    shown = CliRunner().invoke(cli, ["table", str(tmp_path)]).output
    assert "Unfinished: 1 of 3 cells are decoded, 0 of them scored." in shown
    assert "| ar | 10 |" in shown
    assert "mulosd pool_k" not in shown
    run_sweep(toy_sweep(), out=tmp_path)
    shown = CliRunner().invoke(cli, ["table", str(tmp_path)]).output
    assert "Unfinished" not in shown
    assert "mulosd pool_k=2 tau=0.05" in shown


def test_mlflow_gets_cells_as_they_finish(tmp_path: Path) -> None:
    uri = default_uri(tmp_path)
    seen: list[list[tuple[str, int, bool]]] = []
    log_cells = log_while_running(Store(tmp_path), every_s=0.0)

    def look(key: str) -> None:
        if len(seen) < 2:
            log_cells(key)
            seen.append(counted(results_from_mlflow(uri, key).rows))

    sweep = toy_sweep(methods=[{"method": "ar"}, {"method": "draft-only"}])
    report = run_sweep(sweep, out=tmp_path, finished=look)
    assert seen == [[("ar", 10, False)], [("ar", 10, False), ("draft-only", 10, False)]]
    store = Store.existing(tmp_path)
    write_report(store, report.sweep_key)
    assert track(store, report.sweep_key)
    assert results_from_mlflow(uri, report.sweep_key) == read_results(store)


def test_a_tracking_store_in_trouble_waits_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool | Exception] = [True, True, False, True]
    asked: list[str] = []
    now = [0.0]

    def answer(store: Store, key: str, **options: object) -> bool:
        asked.append(key)
        value = answers[len(asked) - 1]
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(log_sweep, "track", answer)

    def ask(seconds: range) -> int:
        asked.clear()
        log_cells = log_while_running(Store(tmp_path), clock=lambda: now[0])
        for second in seconds:
            now[0] = float(second)
            log_cells("key")
        return len(asked)

    assert ask(range(0, 59)) == 0
    assert ask(range(100, 221)) == 2  # once a minute
    assert ask(range(300, 900)) == 3  # and no more after it did not answer
    answers[0] = ValueError("a bug")
    assert ask(range(1000, 2000)) == 1
    assert "key was not logged while it runs" in caplog.text
    assert "ValueError: a bug" in caplog.text
