"""The Ray executor: the same results as in this process, and nothing lost when workers die."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.stage.read import iter_cell
from mulosd.stage.verify import verify_store
from pipelines.run.driver import RunFailed, run_sweep
from pipelines.store.results import collect
from tests import fakes
from tests.fakes import toy_sweep

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


def images(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.glob("cells/*/images/*.parquet")}


def tokens(store: Path) -> dict[tuple[str, str], list[int]]:
    cells = sorted((store / "cells").iterdir())
    rows = [(cell.name, row) for cell in cells for chunk in iter_cell(cell) for row in chunk]
    return {(key, row["sample_id"]): row["token_ids"] for key, row in rows}


def test_both_executors_agree(tmp_path: Path) -> None:
    report = run_sweep(toy_sweep(), out=tmp_path / "ray", executor="ray")
    run_sweep(toy_sweep(), out=tmp_path / "here")
    assert (report.decoded, report.scores_done) == (30, 3)
    assert len(tokens(tmp_path / "here")) == 30
    assert tokens(tmp_path / "ray") == tokens(tmp_path / "here")
    assert images(tmp_path / "ray") == images(tmp_path / "here")
    assert collect(tmp_path / "ray") == collect(tmp_path / "here")
    assert verify_store(tmp_path / "ray") == []


def test_conditions_are_encoded_by_workers(tmp_path: Path, cluster: Path, steer: Callable[..., None]) -> None:
    """Each prompt once for two cells, in processes of Ray; the images are those of this process."""
    steer(fakes.ENCODE_FILE)
    sweep = toy_sweep(target="fake-t5", methods=[{"method": "ar"}, {"method": "draft-only"}], evaluators=[])
    run_sweep(sweep, out=tmp_path / "ray", executor="ray")
    encoded = [line.split(" ", 1) for line in (cluster / fakes.ENCODE_FILE).read_text().splitlines()]
    assert sorted(prompt for _, prompt in encoded) == sorted(prompt.text for prompt in fakes.prompts())
    assert str(os.getpid()) not in {process for process, _ in encoded}
    run_sweep(sweep, out=tmp_path / "here")
    assert len(tokens(tmp_path / "ray")) == 20
    assert images(tmp_path / "ray") == images(tmp_path / "here")
    assert verify_store(tmp_path / "ray") == []


def test_each_executor_continues_what_the_other_began(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path / "mixed", limit=5)
    report = run_sweep(toy_sweep(), out=tmp_path / "mixed", executor="ray", workers=1)
    run_sweep(toy_sweep(), out=tmp_path / "here")
    assert report.cached == 12
    assert images(tmp_path / "mixed") == images(tmp_path / "here")


def test_chunks_of_a_dead_worker_are_decoded_by_another(tmp_path: Path, steer: Callable[..., None]) -> None:
    steer(fakes.DIE_FILE, "prompt 1", "prompt 6")  # each ends one worker, once
    report = run_sweep(toy_sweep(), out=tmp_path / "ray", executor="ray")
    run_sweep(toy_sweep(), out=tmp_path / "here")
    assert report.failed == 0
    assert images(tmp_path / "ray") == images(tmp_path / "here")


@pytest.mark.slow
def test_a_chunk_that_kills_every_worker_becomes_failed_rows(tmp_path: Path, steer: Callable[..., None]) -> None:
    steer(fakes.DIE_FILE, *["prompt 6"] * 3)
    sweep = toy_sweep(methods=[{"method": "ar"}])
    with pytest.raises(RunFailed, match="the worker died 3 times on fake-a ar chunk 1") as caught:
        run_sweep(sweep, out=tmp_path, executor="ray", workers=1)
    assert caught.value.report is not None
    assert [sample for _, sample, _ in caught.value.report.failures] == [f"toy/{i:03d}/0" for i in (4, 5, 6, 7)]
    assert len(tokens(tmp_path)) == 10
    assert run_sweep(sweep, out=tmp_path).decoded == 4


def test_a_failing_sample_is_a_row(tmp_path: Path, steer: Callable[..., None]) -> None:
    steer(fakes.FAIL_FILE, "prompt 5")
    with pytest.raises(RunFailed, match="RuntimeError: cannot draw 'prompt 5'"):
        run_sweep(toy_sweep(), out=tmp_path / "ray", executor="ray", workers=1)
    with pytest.raises(RunFailed, match="RuntimeError: cannot draw 'prompt 5'"):
        run_sweep(toy_sweep(), out=tmp_path / "here")
    assert images(tmp_path / "ray") == images(tmp_path / "here")


def test_user_errors_read_the_same(tmp_path: Path) -> None:
    cell_images = tmp_path / "cells"
    run_sweep(toy_sweep(methods=[{"method": "ar"}], base_seed=1), out=tmp_path / "other", limit=3)
    (other,) = (tmp_path / "other" / "cells").iterdir()
    run_sweep(toy_sweep(methods=[{"method": "ar"}], evaluators=[]), out=tmp_path, limit=3)
    (cell,) = cell_images.iterdir()
    (cell / "manifest.json").unlink()
    (cell / "images" / "chunk-00000.parquet").unlink()
    (other / "images" / "chunk-00000.parquet").rename(cell / "images" / "chunk-00000.parquet")
    with pytest.raises(DataError, match="is a chunk of cell"):
        run_sweep(toy_sweep(methods=[{"method": "ar"}]), out=tmp_path, executor="ray", workers=1)


def test_too_few_gpus_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentProblem, match="no GPU for this: the sweep asks for 3 on one node and the largest has 2"
    ):
        run_sweep(toy_sweep(device="cuda"), out=tmp_path, executor="ray", num_gpus={"": 3})
    with pytest.raises(ConfigError, match="unknown target 'fake-b'"):
        run_sweep(toy_sweep(), out=tmp_path, executor="ray", num_gpus={"fake-b": 1})


def loads(cluster: Path) -> list[list[str]]:
    """[process, target] of every load."""
    return [line.split() for line in (cluster / fakes.LOAD_FILE).read_text().splitlines()]


def test_weights_are_swapped_as_rarely_as_possible(tmp_path: Path, cluster: Path, steer: Callable[..., None]) -> None:
    steer(fakes.LOAD_FILE)
    sweep = toy_sweep(target=["fake-a", "fake-b"])
    report = run_sweep(sweep, out=tmp_path / "ray", executor="ray", workers=2)
    assert report.decoded == 60
    # Two actors share two targets: one load each, and at most one more to help at the end.
    assert len(loads(cluster)) <= 3
    assert {target for _, target in loads(cluster)} == {"fake-a", "fake-b"}
    run_sweep(sweep, out=tmp_path / "here")
    assert images(tmp_path / "ray") == images(tmp_path / "here")


def test_targets_of_different_sizes_share_a_cluster(tmp_path: Path, cluster: Path, steer: Callable[..., None]) -> None:
    steer(fakes.LOAD_FILE)
    asked = {"num_gpus": {"fake-a": 1, "fake-b": 3}}
    sweep = toy_sweep(target=["fake-a", "fake-b"], device="cuda", methods=[{"method": "ar"}], resources=asked)
    report = run_sweep(sweep, out=tmp_path, executor="ray", num_gpus={"fake-b": 2})  # there are no three
    assert (report.decoded, report.scores_done) == (20, 2)
    by_process = dict(loads(cluster))
    assert len([target for target in by_process.values() if target == "fake-b"]) == 1  # it needs both GPUs
