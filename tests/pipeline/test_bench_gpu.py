"""The script for a lent GPU, on a CPU at toy size: its static AR step is `ar`, its results hold what they claim."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from bench import gpu, gpu_report
from bench.static_ar import StaticAR
from mulosd.decoding.registry import decode
from mulosd.files.publish import read_json
from mulosd.methods import AR
from mulosd.sampling.filters import Sampler

SETUP = gpu.Setup(gpu.SIZES["tiny"], "cpu", torch.float64, 1)


@pytest.fixture(scope="module")
def models() -> gpu.Models:
    return gpu.build_models(SETUP, 8)


@pytest.mark.parametrize("guidance", [1.0, 7.5])
def test_the_static_step_is_ar_for_every_seed(models: gpu.Models, guidance: float) -> None:
    sampler = Sampler(guidance=guidance, top_k=20)
    static = StaticAR(models.model, models.condition, sampler)
    images = []
    for seed in (3, 4):
        job = replace(models.job(SETUP, seed), sampler=sampler)
        images.append(static(torch.tensor([seed])).clone())
        assert torch.equal(images[-1], torch.from_numpy(decode(job, AR()).tokens).flatten(1))
    assert not torch.equal(*images)


def test_floor_counts_blocks_norm_and_head(models: gpu.Models) -> None:
    unread = models.model.tok_embeddings.weight.nbytes
    unread += sum(weight.nbytes for weight in models.model.cls_embedding.parameters())
    assert gpu.weight_bytes(models.model) == sum(weight.nbytes for weight in models.model.parameters()) - unread


def test_a_run_publishes_json_and_a_page(tmp_path: Path) -> None:
    options = ["--size", "tiny", "--device", "cpu", "--rounds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(gpu.main, options, catch_exceptions=False)
    assert result.exit_code == 0
    content = read_json(tmp_path / "gpu.json")
    assert {case["agrees"] for case in content["results"]["parity"]["cases"].values()} == {True}
    rows = {row["method"]: row for row in content["rows"]}
    assert list(rows) == [gpu_report.STATIC, *gpu.METHODS]
    assert {name: row["forwards"] for name, row in rows.items() if "mulosd" not in name} == {
        gpu_report.STATIC: 64,
        "zipar, window 4": 2 * 8 + 6 * 4,
        "zipar, window 16": 64,
        "ar, eager": 64,
    }
    assert set(content["results"]["grid 8"]["forward_ms"]["target"]) == {str(1 << i) for i in range(7)}
    assert all(row["images"] == 1 and "warm-up" not in row["flag"] for row in rows.values())
    (image,) = content["results"]["grid 8"]["methods"]["mulosd"]["images"]
    assert 0 < image["resampled"] <= 64 * gpu.RESAMPLED_FRACTION
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for name in rows)


def found(name: str) -> Any:
    def steps(setup: gpu.Setup, *grid: int) -> Iterator[dict[str, Any]]:
        yield {"value": name}
        if name == "bad":
            raise ValueError("no memory")
        yield {"value": f"{name}, more"}

    return steps


def test_a_failed_phase_keeps_its_part_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "measure_parity", found("good"))
    monkeypatch.setattr(gpu, "measure_bandwidth", found("bad"))
    monkeypatch.setattr(gpu, "measure_grid", found("grid"))
    results, is_whole = gpu.run_phases(SETUP, 60, lambda results: None)
    assert not is_whole
    assert results["bandwidth"] == {"value": "bad", "error": "ValueError('no memory')"}
    assert [results[key]["value"] for key in ("parity", "grid 8")] == ["good, more", "grid, more"]


def test_a_phase_past_its_time_stops_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parity", "bandwidth", "grid"):
        monkeypatch.setattr(gpu, f"measure_{name}", found(name))
    published: list[str] = []
    results, is_whole = gpu.run_phases(SETUP, 0, lambda results: published.append(str(results)))
    assert is_whole
    assert [entry["value"] for entry in results.values()] == ["parity", "bandwidth", "grid"]
    assert all("share of the time" in entry["stopped"] for entry in results.values())
    assert "grid" in published[-1]


def test_a_device_that_differs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "agrees", lambda ours, reference: False)
    steps = gpu.measure_parity(SETUP)
    assert not next(steps)["cases"]["ar_dtok"]["agrees"]
    with pytest.raises(RuntimeError, match="does not reproduce"):
        next(steps)


def test_rows_come_from_known_times() -> None:
    def entry(seconds: list[float], forwards: int, is_warm: bool = True) -> dict[str, Any]:
        return {"is_warm": is_warm, "images": [{"seconds": value, "forwards": forwards} for value in seconds]}

    methods = {
        gpu_report.STATIC: entry([4.0, 5.0, 9.0], 100),
        "half": entry([2.5], 50, is_warm=False),
        "miracle": entry([1.0], 50),
        gpu_report.EAGER: entry([10.0], 100),
    }
    grid = {"num_tokens": 100, "weight_bytes": 3_000_000, "methods": methods}
    rows = gpu_report.summarise({"bandwidth": {"bytes_per_s": 1e9}, "grid 10": grid})
    assert [row["speed_up"] for row in rows] == [1.0, 2.0, 5.0, 0.5]
    assert [row["forward_ratio"] for row in rows] == [1.0, 2.0, 2.0, 1.0]
    assert [row["flag"] for row in rows] == ["", "warm-up only", "faster than its forwards explain", ""]
    assert rows[0]["ms_per_forward"] == 50.0
    assert rows[0]["floor_ms"] == pytest.approx(3.0)
    methods[gpu_report.EAGER] = entry([2.0], 100)
    rows = gpu_report.summarise({"grid 10": grid})
    assert [row["speed_up"] for row in rows] == [0.4, 0.8, 2.0, 1.0]
    assert {row["floor_ms"] for row in rows} == {None}
