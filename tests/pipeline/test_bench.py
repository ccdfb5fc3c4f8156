"""The bench: what is timed, in which order, and which ratios come out of known times."""

from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError
from mulosd.stage.read import read_table
from mulosd.types import Decoded
from pipelines.bench import bench_samples, run_bench, summarise
from pipelines.driver import run_sweep
from pipelines.plan import build_plan
from pipelines.results import collect
from pipelines.sweep import BenchSpec, Sweep
from tests import fakes
from tests.fakes import toy_sweep

CALLS: list[tuple[str, str]] = []


def slow_decode(
    self: fakes.FakeTarget, prompts: Any, seeds: Any, method: Any, *, frames: bool = False
) -> list[Decoded]:
    """Takes as long as it says: one microsecond per forward, and 50 around it for the condition."""
    import time

    (image,) = [self.one(prompt, seed, method) for prompt, seed in zip(prompts, seeds, strict=True)]
    CALLS.append((prompts[0], method.name))
    image.stats.time_condition_s = 50e-6
    image.stats.time_resample_s = image.stats.forwards * 100e-6
    time.sleep(image.stats.time_condition_s + image.stats.time_resample_s)
    return [image]


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


def test_ratios_never_cross_runs(tmp_path: Path, sweep: Sweep) -> None:
    """A sweep without `ar` has no speed-up, even where another run of the store timed `ar`."""
    run_bench(sweep, out=tmp_path)
    alone = toy_sweep(name="alone", methods=[{"method": "mulosd"}], bench={"prompts": 3})
    (entry,) = run_bench(alone, out=tmp_path).content["cells"].values()
    assert entry["speed_up"] is None
    assert "no ar cell" in entry["reason"]


def rows_of(times: dict[str, list[float]], forwards: dict[str, int]) -> list[dict[str, Any]]:
    phases = dict.fromkeys(
        ("time_draft_s", "time_upsample_s", "time_verify_s", "time_condition_s", "time_detokenize_s"), 0.0
    )
    return [
        {
            "cell_key": key,
            "sample_id": f"toy/{i}/0",
            "latency_s": value,
            "wall_s": value * 1.2,
            "forwards": forwards[key],
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
    timed, warm = bench_samples(plan, BenchSpec(prompts=8, warmup=3))
    assert [sample.sample_id for sample in timed] == [f"toy/{i:03d}/0" for i in range(8)]
    assert [sample.sample_id for sample in warm] == ["toy/008/0", "toy/009/0", "toy/008/0"]
    with pytest.raises(ConfigError, match="needs more prompts"):
        bench_samples(plan, BenchSpec(prompts=10, warmup=1))
    assert len(bench_samples(plan, BenchSpec(prompts=10, warmup=0))[0]) == 10
