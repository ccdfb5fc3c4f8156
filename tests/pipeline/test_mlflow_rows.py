"""A table from MLflow is the table from the store, to the last digit; what does not fit together is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.render import WRITERS, render
from dashboards.rows import CellRow
from evaluators.types import Metric
from mulosd.errors import DataError, EnvironmentProblem, UserError
from pipelines.cli.main import cli
from pipelines.compare.cell_rows import FILE_NAME, SweepResults, decode, encode
from pipelines.compare.report import read_results, results_table, write_report
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.tracking.log_sweep import track
from pipelines.tracking.mlflow_rows import results_from_mlflow
from pipelines.tracking.tracking_uri import default_uri
from tests import fakes
from tests.fakes import toy_sweep

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def with_companions(finalize: Any) -> Any:
    """The metrics that tables show only where they are there, one with values per sample."""

    def more(self: Any, state: Any) -> list[Metric]:
        (mean,) = finalize(self, state)
        per_sample = {key: value / 3 for key, value in mean.per_sample.items()}
        dpg = replace(mean, name="dpg/overall", value=mean.value / 3, interval=(0.1, 99.7), per_sample=per_sample)
        kid = replace(mean, name="kid_effnet_full", value=-1 / 3e4, interval=(-0.01, 0.01), per_sample={})
        recall = replace(mean, name="recall_effnet", value=None, reason="no reference", per_sample={})
        return [mean, dpg, kid, recall]

    return more


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two logged sweeps of one store."""
    folder = tmp_path_factory.mktemp("logged") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))
        patch.setattr(fakes.MeanEvaluator, "finalize", with_companions(fakes.MeanEvaluator.finalize))
        for sweep in (toy_sweep(), toy_sweep(name="second", methods=[{"method": "ar"}, {"method": "draft-only"}])):
            report = run_sweep(sweep, out=folder)
            store = Store.existing(folder)
            write_report(store, report.sweep_key)
            assert track(store, report.sweep_key)
    return store


def test_both_sources_give_the_same_tables(logged: Store) -> None:
    uri = default_uri(logged.root)
    keys = logged.sweep_keys()
    assert len(keys) == 2
    for key in keys:
        ours, theirs = read_results(logged, key), results_from_mlflow(uri, key)
        assert theirs == ours
        for form in WRITERS:
            assert render(results_table(theirs), form) == render(results_table(ours), form)
        assert {"dpg", "dpg_difference", "kid_effnet_full"} <= {c.key for c in results_table(theirs).columns}
    assert results_from_mlflow(uri).sweep_key == keys[-1]


def test_the_command_reads_either(logged: Store) -> None:
    outputs = [
        CliRunner().invoke(cli, ["table", *args, "--format", "csv"])
        for args in (
            [str(logged.root)],
            [str(logged.root), "--from", "mlflow"],
            ["--from", default_uri(logged.root)],
        )
    ]
    assert [done.exit_code for done in outputs] == [0, 0, 0], [done.output for done in outputs]
    assert len({done.stdout for done in outputs}) == 1


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ([], "name the folder"),
        (["--from", "mlflow"], "name the folder"),
        (["--from", "elsewhere"], "a tracking URI"),
        (["nowhere", "--from", "mlflow"], "does not exist"),
        (["--from", "sqlite:///relative.db"], "no absolute path"),
    ],
)
def test_the_command_refuses_in_one_sentence(args: list[str], part: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(cli, ["table", *args])
    assert isinstance(done.exception, UserError)
    assert part in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_unknown_sweeps_and_servers(logged: Store) -> None:
    uri = default_uri(logged.root)
    with pytest.raises(DataError, match="is not logged there"):
        results_from_mlflow(uri, "0" * 16)
    with pytest.raises(DataError, match="not a sweep key"):
        results_from_mlflow(uri, "x' or '1")
    with pytest.raises(EnvironmentProblem, match="does not answer"):
        results_from_mlflow("http://127.0.0.1:9")


def test_numbers_that_do_not_agree_are_refused(logged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, key = default_uri(logged.root), logged.sweep_keys()[-1]
    monkeypatch.setattr("pipelines.tracking.mlflow_rows.metric_values", lambda row: {"mean": 0.25})
    with pytest.raises(DataError, match=r"mean of ar is .* in its run and 0.25"):
        results_from_mlflow(uri, key)
    monkeypatch.setattr("pipelines.tracking.mlflow_rows._cells", lambda *_: {})
    with pytest.raises(DataError, match="has no run"):
        results_from_mlflow(uri, key)


def test_a_sweep_logged_without_its_rows(logged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setattr(MlflowClient, "list_artifacts", lambda *_: [SimpleNamespace(path="table.md")])
    with pytest.raises(DataError, match=f"has no {FILE_NAME}"):
        results_from_mlflow(default_uri(logged.root))


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from([f"s/{i}/0" for i in range(5)]), FINITE),
    st.dictionaries(st.sampled_from([f"s/{i}/0" for i in range(5)]), FINITE),
    FINITE,
)
def test_rows_come_back_as_they_were(counted: dict[str, float], scores: dict[str, float], value: float) -> None:
    metric = {
        "value": value,
        "interval": [0.1, value],
        "n": 3,
        "reason": "é",
        "per_sample": scores,
        "protocol": {"a": 1},
    }
    row = CellRow("k", "t", "mulosd", {"tau": value}, 256, {"m": metric}, {"drafted": counted, "x": {}}, {"n": 2})
    results = SweepResults("key", "name", (row,), ("a note",))
    data = encode(results)
    assert decode(json.loads(data), "here") == results
    assert encode(decode(json.loads(data), "here")) == data


@pytest.mark.parametrize("content", [[], {}, {"version": 2}, {"version": 1}, {"version": 1, "cells": [{}]}])
def test_other_files_are_refused(content: Any) -> None:
    with pytest.raises(DataError, match=r"here: .*log the sweep again"):
        decode(content, "here")
