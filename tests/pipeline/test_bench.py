"""The bench: what is timed, in which order, and which ratios come out of known times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mulosd.errors import ConfigError
from mulosd.stage.read import read_table
from mulosd.types import Decoded
from pipelines.cli.main import cli
from pipelines.latency.bench import PHASES, bench_calls, run_bench, summarise
from pipelines.latency.bench_table import bench_lines
from pipelines.plan.build import build_plan
from pipelines.plan.sweep import BenchSpec, Sweep
from pipelines.run.driver import run_sweep
from pipelines.store.results import collect
from tests import fakes
from tests.fakes import toy_sweep

CALLS: list[tuple[str, str]] = []


def slow_decode(
    self: fakes.FakeTarget, prompts: Any, seeds: Any, method: Any, *, frames: bool = False
) -> list[Decoded]:
    """Takes as long as it says: 100 microseconds per forward whatever the batch, and 50 before it for the condition."""
    import time

    images = [self.one(prompt, seed, method) for prompt, seed in zip(prompts, seeds, strict=True)]
    CALLS.append((" ".join(prompts), method.name))
    for image in images:
        image.stats.time_condition_s = 50e-6
        image.stats.time_resample_s = image.stats.forwards * 100e-6
    time.sleep(images[0].stats.time_condition_s + images[0].stats.time_resample_s)
    return images


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    CALLS.clear()
    monkeypatch.setattr(fakes.FakeTarget, "decode", slow_decode)
    methods = [{"method": "ar"}, {"method": "draft-only"}, {"method": "mulosd"}]
    return toy_sweep(methods=methods, bench={"prompts": 3, "warmup": 1})


def test_a_run(tmp_path: Path, sweep: Sweep) -> None:
    report = run_bench(sweep, out=tmp_path)
    cells = build_plan(sweep).cells
    entries = [report.content["cells"][cell.key] for cell in cells]
    assert [entry["speed_up"] for entry in entries] == pytest.approx([1.0, 16 / 4, 16 / 6])
    assert [entry["forward_ratio"] for entry in entries] == pytest.approx([1.0, 16 / 4, 16 / 6])
    assert entries[0]["median_s"] == pytest.approx(16 * 100e-6)
    assert entries[0]["total_s"] == pytest.approx(3 * 16 * 100e-6)
    assert entries[2]["interval"] == pytest.approx([16 / 6, 16 / 6])
    assert all(entry["n"] == 3 and entry["run"] == report.run for entry in entries)
    assert report.content["settings"]["threads"] >= 1
    assert report.content["record"]["versions"]["torch"]
    assert report.content["record"]["load_after"] >= 0
    times = report.content["forward_ms"]["fake-a"]
    assert list(times["target"]) == ["1", "2", "4", "8", "16"]
    assert list(times["drafter"]) == ["1"]
    assert all(ms > 0 for model in times.values() for ms in model.values())
    rows = read_table(report.folder / "rows.parquet")
    assert len(rows) == 9
    assert all(row["wall_s"] >= row["latency_s"] + row["time_condition_s"] for row in rows)


def test_methods_are_interleaved_and_take_turns(tmp_path: Path, sweep: Sweep) -> None:
    run_bench(sweep, out=tmp_path)
    warm, timed = CALLS[:3], CALLS[3:]
    assert {prompt for prompt, _ in warm} == {"prompt 3"}
    assert [prompt for prompt, _ in timed] == [f"prompt {i}" for i in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    assert [name for _, name in timed[::3]] == ["ar", "draft-only", "mulosd"]
    assert [sorted(name for _, name in timed[i : i + 3]) for i in (0, 3, 6)] == [["ar", "draft-only", "mulosd"]] * 3


def test_throughput_by_batch(tmp_path: Path, sweep: Sweep) -> None:
    """Forwards that a batch shares: images per second grow with it, the ratio to ar stays."""
    report = run_bench(replace(sweep, bench=BenchSpec(prompts=5, warmup=1, batches=(1, 2, 4))), out=tmp_path)
    cells = build_plan(sweep).cells
    assert list(report.content["batches"]) == ["2", "4"]
    for size, num_calls, of_batch in ((1, 5, report.content["cells"]), *_batches(report.content, (3, 2))):
        ar, draft, _ = (of_batch[cell.key] for cell in cells)
        assert (ar["n"], draft["n"]) == (num_calls, num_calls)
        assert ar["images_per_s"] == pytest.approx(size / (16 * 100e-6))
        assert draft["speed_up"] == pytest.approx(4.0)
        assert draft["interval"] == pytest.approx([4.0, 4.0])
        assert (ar["forwards"], draft["forwards"]) == (16, 4)
        assert draft["phases"]["time_resample_s"] == pytest.approx(4 * 100e-6 / size)
        assert draft["phases"]["time_condition_s"] == pytest.approx(50e-6 / size)
    rows = read_table(report.folder / "rows.parquet")
    assert [sum(row["batch"] == size for row in rows) for size in (1, 2, 4)] == [15, 9, 6]


def _batches(content: dict[str, Any], num_calls: tuple[int, int]) -> list[tuple[int, int, dict[str, Any]]]:
    return [(int(size), num, content["batches"][size]) for size, num in zip(content["batches"], num_calls, strict=True)]


def test_calls_of_a_batch_are_interleaved_and_warmed(tmp_path: Path, sweep: Sweep) -> None:
    run_bench(replace(sweep, bench=BenchSpec(prompts=4, warmup=1, batches=(1, 2))), out=tmp_path)
    own = [(prompts, name) for prompts, name in CALLS if prompts.count("prompt") == 2]
    assert CALLS[-len(own) :] == own
    assert [prompts for prompts, _ in own[::3]] == ["prompt 4 prompt 5", "prompt 0 prompt 1", "prompt 2 prompt 3"]
    assert [name for _, name in own[::3]] == ["ar", "ar", "draft-only"]
    assert all(len({name for _, name in own[i : i + 3]}) == 3 for i in (0, 3, 6))


def test_one_call_gives_a_ratio_without_limits(tmp_path: Path, sweep: Sweep) -> None:
    report = run_bench(replace(sweep, bench=BenchSpec(prompts=2, warmup=0, batches=(1, 8))), out=tmp_path)
    draft = report.content["batches"]["8"][build_plan(sweep).cells[1].key]
    assert (draft["n"], draft["speed_up"], draft["interval"]) == (1, pytest.approx(4.0), None)
    assert "two prompts or more" in draft["reason"]


def test_other_batches_are_another_run_and_the_default_is_none(tmp_path: Path, sweep: Sweep) -> None:
    first = run_bench(sweep, out=tmp_path)
    assert "batches" not in first.content["settings"]  # as in the runs of before
    assert first.content["batches"] == {}
    batched = run_bench(replace(sweep, bench=BenchSpec(3, 1, (1, 2))), out=tmp_path)
    assert not batched.is_cached
    assert batched.content["settings"]["batches"] == [1, 2]


def test_the_table_shows_every_method_at_every_batch(tmp_path: Path, sweep: Sweep) -> None:
    content = run_bench(replace(sweep, bench=BenchSpec(4, 1, (1, 2))), out=tmp_path).content
    labels = {cell.key: cell.label for cell in build_plan(sweep).cells}
    lines = list(bench_lines(content, labels))
    head, *table = lines[2:9]
    assert head.split()[:4] == ["B", "images/s", "to", "ar"]
    assert head.split()[-7:] == ["condition", "draft", "upsample", "verify", "resample", "downsample", "detokenize"]
    assert {f"time_{name}_s" for name in head.split()[-7:]} == set(PHASES)
    assert len({len(line) for line in (head, *table)}) == 1
    assert [" ".join(line.split()[:3]) for line in table] == [
        f"{labels[key]} {size}" for size in (1, 2) for key in labels
    ]
    assert " ".join(table[4].split()[3:]) == "5e+03 4.00× [4.00, 4.00] 0.000 4.0 0.0 0.0 0.0 0.0 0.2 0.0 0.0"
    assert [line[:4] for line in lines[-2:]] == ["t(m)", "t(m)"]


def test_a_run_of_before_is_shown_without_what_it_did_not_record(tmp_path: Path, sweep: Sweep) -> None:
    content = dict(run_bench(sweep, out=tmp_path).content)
    del content["batches"]
    new = ("images_per_s", "phases")
    content["cells"] = {
        key: {name: value for name, value in entry.items() if name not in new}
        for key, entry in content["cells"].items()
    }
    labels = {cell.key: cell.label for cell in build_plan(sweep).cells}
    line = list(bench_lines(content, labels))[4]
    assert " ".join(line.split()[2:]) == "1 2.5e+03 4.00× [4.00, 4.00] 0.000 4.0 – – – – – – –"
    for entry in content["cells"].values():
        entry["phases"] = {"time_resample_s": 0.5}
    assert " ".join(list(bench_lines(content, labels))[4].split()[-7:]) == "– – – – 500.0 – –"


def test_rows_of_the_table_carry_the_bench(tmp_path: Path, sweep: Sweep) -> None:
    report = run_bench(sweep, out=tmp_path)
    run_sweep(sweep, out=tmp_path)
    rows = collect(tmp_path)
    assert rows[1].latency["speed_up"] == pytest.approx(4.0)
    assert {row.latency["run"] for row in rows} == {report.run}


def test_an_equal_run_is_found_again(tmp_path: Path, sweep: Sweep) -> None:
    first = run_bench(sweep, out=tmp_path)
    num = len(CALLS)
    again = run_bench(sweep, out=tmp_path)
    assert again.is_cached
    assert again.run == first.run
    assert len(CALLS) == num
    assert run_bench(sweep, out=tmp_path, force=True).run != first.run


def test_other_code_is_measured_again(tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_bench(sweep, out=tmp_path)
    monkeypatch.setattr("pipelines.latency.bench.code_version", lambda record: "1.0 another")
    again = run_bench(sweep, out=tmp_path)
    assert not again.is_cached
    assert first.content["settings"]["code"] != again.content["settings"]["code"] == "1.0 another"
    assert {row["version"] for row in read_table(again.folder / "rows.parquet")} == {"1.0 another"}


def test_ratios_never_cross_runs(tmp_path: Path, sweep: Sweep) -> None:
    """A sweep without `ar` has no speed-up, even where another run of the store timed `ar`."""
    run_bench(sweep, out=tmp_path)
    alone = toy_sweep(name="alone", methods=[{"method": "mulosd"}], bench={"prompts": 3})
    (entry,) = run_bench(alone, out=tmp_path).content["cells"].values()
    assert entry["speed_up"] is None
    assert "no ar cell" in entry["reason"]


def rows_of(times: dict[str, list[float]], forwards: dict[str, int]) -> list[dict[str, Any]]:
    phases = dict.fromkeys(PHASES, 0.0)
    return [
        {
            "cell_key": key,
            "sample_id": f"toy/{i}/0",
            "latency_s": value,
            "wall_s": value * 1.2,
            "forwards": forwards[key],
            "batch": 1,
            **phases,
            "time_resample_s": value,
        }
        for key, values in times.items()
        for i, value in enumerate(values)
    ]


def test_ratio_of_totals_beside_the_median_of_ratios() -> None:
    ar, method, _ = build_plan(toy_sweep()).cells
    times = {ar.key: [1.0, 1.0, 10.0], method.key: [0.5, 0.25, 10.0]}
    done = summarise(rows_of(times, {ar.key: 16, method.key: 4}), [ar, method])[method.key]
    assert done["speed_up"] == pytest.approx(12 / 10.75)
    assert done["median_ratio"] == pytest.approx(2.0)
    assert done["interval"][0] <= done["speed_up"] <= done["interval"][1]
    assert done["forward_ratio"] == 4.0
    assert "17% of the wall time lies in no phase" in done["flag"]
    assert "above the forward ratio" not in done["flag"]


def test_a_latency_ratio_above_the_step_ratio_is_flagged() -> None:
    ar, method, _ = build_plan(toy_sweep()).cells
    times = {ar.key: [1.0, 1.0], method.key: [0.1, 0.1]}
    done = summarise(rows_of(times, {ar.key: 16, method.key: 4}), [ar, method])
    assert "latency ratio 10.00 is above the forward ratio 4.00" in done[method.key]["flag"]


def test_times_that_cannot_be_are_a_bug(tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def lying(self: fakes.FakeTarget, *args: Any, **kwargs: Any) -> list[Decoded]:
        images = slow_decode(self, *args, **kwargs)
        images[0].stats.time_verify_s = 5.0
        return images

    monkeypatch.setattr(fakes.FakeTarget, "decode", lying)
    with pytest.raises(RuntimeError, match="do not fit"):
        run_bench(sweep, out=tmp_path)
    assert not list(tmp_path.glob("bench/*"))


def test_warm_up_prompts_are_not_timed() -> None:
    plan = build_plan(toy_sweep(images_per_prompt=2))
    timed, warm = bench_calls(plan, BenchSpec(prompts=8, warmup=3))
    assert [[sample.sample_id for sample in call] for call in timed] == [[f"toy/{i:03d}/0"] for i in range(8)]
    assert [[sample.sample_id for sample in call] for call in warm] == [["toy/008/0"], ["toy/009/0"], ["toy/008/0"]]
    with pytest.raises(ConfigError, match="needs more prompts"):
        bench_calls(plan, BenchSpec(prompts=10, warmup=1))
    assert len(bench_calls(plan, BenchSpec(prompts=10, warmup=0)).timed) == 10


def test_the_last_call_of_a_batch_is_filled_up() -> None:
    plan = build_plan(toy_sweep())
    timed, warm = bench_calls(plan, BenchSpec(prompts=5, warmup=1), 4)
    assert [[sample.sample_id for sample in call] for call in timed] == [
        [f"toy/{i:03d}/0" for i in range(first, first + 4)] for first in (0, 4)
    ]
    assert [[sample.sample_id for sample in call] for call in warm] == [[f"toy/{i:03d}/0" for i in (8, 9, 8, 9)]]
    with pytest.raises(ConfigError, match="prompts = 5 at batch 16 with warm-up needs more prompts than the 10"):
        bench_calls(plan, BenchSpec(prompts=5, warmup=1), 16)


def test_the_command_brings_table_and_mlflow_up_to_date(
    tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = []
    monkeypatch.setattr("pipelines.cli.sweeps.load", lambda *_: sweep)
    monkeypatch.setattr(
        "pipelines.tracking.log_sweep.track", lambda store, key, tracking_uri: logged.append(key) or True
    )
    command = ["bench", "any", "--out", str(tmp_path), "--quiet"]
    before = CliRunner().invoke(cli, command)
    assert before.exit_code == 0, before.output
    assert "has no table of this sweep yet" in before.output
    key = run_sweep(sweep, out=tmp_path).sweep_key
    after = CliRunner().invoke(cli, [*command, "--force"])
    assert after.exit_code == 0, after.output
    run = max(path.name for path in (tmp_path / "bench").iterdir())
    assert f"Latency: one bench run ({run})" in (tmp_path / "sweeps" / key / "table.md").read_text(encoding="utf-8")
    assert logged == [key]
    CliRunner().invoke(cli, [*command, "--no-track"])
    assert logged == [key]
