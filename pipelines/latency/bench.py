"""Latency by measurement (bench/README.md): batch 1, condition ready to last token, methods interleaved by prompt.

    bench/<run>/   bench.json (per cell: latency, ratios against `ar` of this run; the same for each larger batch, whose
                   images share their forwards; per target: t(m)), rows.parquet (per call and cell)

latency_s of a call = its draft + up-sample + verify + resample + down-sample times as the target reports them, each
synchronised; the wall clock around the call is measured too and must not be shorter. A ratio never crosses runs or
batch sizes.
"""

import logging
import math
import os
import statistics as order_statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evaluators.statistics import intervals as statistics
from mulosd.errors import ConfigError
from mulosd.files.publish import publish_json
from mulosd.methods import SAMPLER_KNOBS, SamplerKnobs
from mulosd.types import DecodeStats
from pipelines.executors.choose import open_executor
from pipelines.host.provenance import code_version, processor_name, provenance, versions
from pipelines.host.provenance import machine as machine_facts
from pipelines.host.timing_lock import timing
from pipelines.latency.forward_time import describe as describe_forward_times
from pipelines.latency.forward_time import forward_times
from pipelines.plan.build import build_plan, check_networks, check_weights
from pipelines.plan.cells import Cell, Plan, Sample, key_of
from pipelines.plan.sweep import BenchSpec, Sweep
from pipelines.run.conditions import stage_conditions
from pipelines.store.layout import Store
from pipelines.store.results import latest_bench
from pipelines.work.decode import condition_of
from pipelines.work.tasks import ConditionSource, resolve

log = logging.getLogger(__name__)

LATENCY_PHASES = ("time_draft_s", "time_upsample_s", "time_verify_s", "time_resample_s", "time_downsample_s")
PHASES = ("time_condition_s", *LATENCY_PHASES, "time_detokenize_s")
# The part of a call's wall time that no phase accounts for; above it the phases miss work and latency is too short.
MAX_UNACCOUNTED = 0.10

BenchProgress = Callable[[int, int, str], None]


class Calls(NamedTuple):
    """Samples of each decoder call at one batch size, timed and warm-up (none is in both)."""

    timed: list[list[Sample]]
    warm: list[list[Sample]]


@dataclass(frozen=True)
class BenchReport:
    """A bench run: its name, folder and bench.json content; is_cached when an equal run was there already."""

    run: str
    folder: Path
    content: Mapping[str, Any]
    is_cached: bool = False


def run_bench(
    sweep: Sweep,
    *,
    out: str | Path,
    threads: int | None = None,
    force: bool = False,
    progress: BenchProgress | None = None,
) -> BenchReport:
    """Measure all cells of a sweep on this machine, one target after the other, and record the run in the store.

    threads: torch threads (default: what torch chose). An equal earlier run (same cells, prompts, threads,
    machine) is returned unless `force`. ConfigError when the sweep has too few prompts. Nothing else should be running.
    """
    import torch

    spec = sweep.bench or BenchSpec()
    plan = build_plan(sweep)
    check_weights(plan)
    check_networks(plan)
    calls = {size: bench_calls(plan, spec, size) for size in spec.batches}
    store = Store.open(out)
    before = torch.get_num_threads()
    settings = _settings(plan, spec, threads or before)
    known = latest_bench(store, plan.sweep_key)
    if known is not None and known["settings_key"] == key_of(settings) and not force:
        return BenchReport(known["run"], store.bench_dir(known["run"]), known, is_cached=True)
    torch.set_num_threads(threads or before)
    try:
        record = provenance()
        with open_executor("inprocess") as executor:  # encoders are gone before timing begins
            samples = [s for timed, warm in calls.values() for batch in (*timed, *warm) for s in batch]
            wanted = dict.fromkeys(sweep.targets, samples)
            sources = stage_conditions(store, plan, wanted, lambda: executor)
        with timing():  # sweeps on this host wait meanwhile
            rows, forwards = _measure(plan, calls, sources, progress or (lambda *_: None))
    finally:
        torch.set_num_threads(before)
    return _publish(store, plan, settings, record, rows, forwards)


def bench_calls(plan: Plan, spec: BenchSpec, size: int = 1) -> Calls:
    """Calls of `size` images: the first image of the first `spec.prompts` prompts, and of more to fill the last call.

    ConfigError where the sweep has too few prompts.
    """
    per_prompt = plan.sweep.images_per_prompt
    samples = [s for chunk in plan.cells[0].chunks for s in chunk.all_samples][::per_prompt]
    num_timed = math.ceil(spec.prompts / size) * size
    if len(samples) < num_timed + min(spec.warmup, 1):
        raise ConfigError(
            f"bench.prompts = {spec.prompts} at batch {size} with warm-up needs more prompts than the {len(samples)} "
            "of the sweep; lower bench.prompts or bench.batches, or use a larger prompt set."
        )
    rest = samples[num_timed:]
    warm = [rest[i % len(rest)] for i in range(spec.warmup * size)]
    return Calls(*([part[i : i + size] for i in range(0, len(part), size)] for part in (samples[:num_timed], warm)))


def summarise(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell], *, size: int = 1) -> dict[str, dict[str, Any]]:
    """Per cell: total, median and mean latency of its n calls, images per second, and seconds per image by phase; and
    against the run's `ar` cell of the same target and sampler the ratio of totals with its paired bootstrap interval,
    the median of paired ratios and the forward ratio.

    rows: of the calls with `size` images. `speed_up` is None with a `reason` where there is no baseline.
    flag: why a ratio should not be trusted, or "".
    """
    latency = {cell.key: _column(rows, cell, "latency_s") for cell in cells}
    forwards = {cell.key: _column(rows, cell, "forwards") for cell in cells}
    done = {}
    for cell in cells:
        own = latency[cell.key]
        entry: dict[str, Any] = {
            "n": len(own),
            "total_s": sum(own.values()),
            "median_s": order_statistics.median(own.values()),
            "mean_s": sum(own.values()) / len(own),
            "images_per_s": size * len(own) / sum(own.values()),
            "forwards": sum(forwards[cell.key].values()) / len(own),
            "phases": {name: sum(_column(rows, cell, name).values()) / (size * len(own)) for name in PHASES},
            "unaccounted": _unaccounted(rows, cell),
        }
        baseline = _baseline(cell, cells)
        if baseline is None:
            entry |= {"speed_up": None, "reason": "no ar cell with the same sampler settings in this bench run"}
        else:
            entry |= _against(latency[baseline.key], own, forwards[baseline.key], forwards[cell.key])
            entry["baseline"] = baseline.key
        entry["flag"] = _flag(entry)
        done[cell.key] = entry
    return done


def latency_of(stats: DecodeStats) -> float:
    """Seconds from condition ready to last token."""
    return float(sum(getattr(stats, name) for name in LATENCY_PHASES))


def _measure(
    plan: Plan,
    calls: Mapping[int, Calls],
    sources: Mapping[str, ConditionSource],
    progress: BenchProgress,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, dict[str, float]]]]:
    """Rows per call and cell, and t(m) per target."""
    sweep = plan.sweep
    rows: list[dict[str, Any]] = []
    version = code_version(provenance())
    forwards = {}
    total = len(plan.cells) * sum(len(timed) for timed, _ in calls.values())
    for target_id in sweep.targets:
        cells = [cell for cell in plan.cells if cell.target == target_id]
        progress(len(rows), total, f"loading {target_id}")
        target = resolve(f"{sweep.families}:load_target")(target_id, device=sweep.device, dtype=sweep.dtype)
        source = sources.get(target_id)
        for size, (timed, warm) in calls.items():
            for batch in warm:
                for cell in cells:
                    _timed_call(target, batch, cell.method, sweep.device, source)
            for number, batch in enumerate(timed):
                # The order turns by one with each call, so that no method always runs on the warmer machine.
                turn = number % len(cells)
                for position, cell in enumerate([*cells[turn:], *cells[:turn]]):
                    measured = _timed_call(target, batch, cell.method, sweep.device, source)
                    where = {"cell_key": cell.key, "sample_id": batch[0].sample_id, "batch": size, "position": position}
                    rows.append({**where, **measured, "load_1min": os.getloadavg()[0], "version": version})
                    progress(len(rows), total, cell.label)
        forwards[target_id] = forward_times(target, synchronize=partial(_synchronise, sweep.device))
    return rows, forwards


def _timed_call(
    target: Any, batch: Sequence[Sample], method: SamplerKnobs, device: str, source: ConditionSource | None
) -> dict[str, Any]:
    """One batch: wall clock around the call, phases inside it, and the counters of its images averaged.

    Staged conditions are handed over; encode_s is what the encoder call of the first took, for encode_prompts together.
    """
    staged = source.rows(batch[:1])[0] if source else {}
    given = condition_of(source, batch)
    _synchronise(device)
    start = time.perf_counter()
    decoded = target.decode([s.prompt.text for s in batch], [s.seed for s in batch], method, **given)
    _synchronise(device)
    wall_s = time.perf_counter() - start
    stats = decoded[0].stats  # every image of a call reports the call's times
    phases = {name: float(getattr(stats, name)) for name in PHASES}
    latency_s = latency_of(stats)
    # The clock ticks in finite steps: equality up to a microsecond per phase is allowed.
    if not 0.0 < latency_s <= wall_s + 1e-5 or sum(phases.values()) > wall_s + 1e-5:
        raise RuntimeError(
            f"{method.name}: the phases {phases} do not fit into the {wall_s:.6f} s that the call took by the clock"
        )
    return {
        "latency_s": latency_s,
        "wall_s": wall_s,
        "forwards": sum(image.stats.forwards for image in decoded) / len(decoded),
        "tokens_fed": sum(image.stats.tokens_fed for image in decoded) / len(decoded),
        "encode_s": staged.get("encode_s"),
        "encode_prompts": staged.get("batch_prompts"),
        **phases,
    }


def _synchronise(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _against(
    base_latency: Mapping[str, float],
    own_latency: Mapping[str, float],
    base_forwards: Mapping[str, float],
    own_forwards: Mapping[str, float],
) -> dict[str, Any]:
    totals = statistics.ratio_of_totals(base_latency, own_latency)
    medians = statistics.median_of_ratios(base_latency, own_latency)
    return {
        "speed_up": totals.value,
        "interval": list(totals.interval) if totals.interval else None,
        "median_ratio": medians.value,
        "median_interval": list(medians.interval) if medians.interval else None,
        "forward_ratio": sum(base_forwards.values()) / sum(own_forwards.values()),
        "reason": totals.reason,
    }


def _flag(entry: Mapping[str, Any]) -> str:
    flags = []
    if entry["speed_up"] is not None and entry["speed_up"] > entry["forward_ratio"]:
        flags.append(
            f"the latency ratio {entry['speed_up']:.2f} is above the forward ratio {entry['forward_ratio']:.2f}: "
            "forwards of the two cost differently, or the baseline is slow"
        )
    if entry["unaccounted"] > MAX_UNACCOUNTED:
        flags.append(f"{entry['unaccounted']:.0%} of the wall time lies in no phase")
    return "; ".join(flags)


def _unaccounted(rows: Sequence[Mapping[str, Any]], cell: Cell) -> float:
    mine = [row for row in rows if row["cell_key"] == cell.key]
    wall = sum(row["wall_s"] for row in mine)
    return 1.0 - sum(row[name] for row in mine for name in PHASES) / wall


def _column(rows: Sequence[Mapping[str, Any]], cell: Cell, name: str) -> dict[str, float]:
    return {row["sample_id"]: float(row[name]) for row in rows if row["cell_key"] == cell.key}


def _baseline(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    same = [
        other
        for other in cells
        if other.method.name == "ar" and other.target == cell.target and _sampler(other) == _sampler(cell)
    ]
    return same[0] if len(same) == 1 else None


def _sampler(cell: Cell) -> dict[str, Any]:
    return {key: value for key, value in cell.knobs.items() if key in SAMPLER_KNOBS}


def _settings(plan: Plan, spec: BenchSpec, threads: int) -> dict[str, Any]:
    """What an earlier run must share to stand for this one."""
    machine = {key: value for key, value in machine_facts().items() if key != "load_1min"}
    is_default = spec.batches == BenchSpec().batches  # left out of the settings, so that older runs stay equal
    return {
        **({} if is_default else {"batches": list(spec.batches)}),
        "cells": [cell.key for cell in plan.cells],
        "prompts": spec.prompts,
        "warmup": spec.warmup,
        "threads": threads,
        "device": plan.sweep.device,
        "device_name": _device_name(plan.sweep.device),
        "machine": machine,
        "torch": versions()["torch"],
        "code": code_version(provenance()),
        "forward_times": describe_forward_times(),
    }


def _device_name(device: str) -> str:
    if device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return processor_name() or "cpu"


def _publish(
    store: Store,
    plan: Plan,
    settings: Mapping[str, Any],
    record: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    forwards: Mapping[str, Any],
) -> BenchReport:
    from mulosd.stage.write import write_table

    finished = datetime.now(UTC)
    run = f"{finished:%Y%m%dT%H%M%S%f}-{plan.sweep_key}"
    by_batch = {
        size: summarise([row for row in rows if row["batch"] == size], plan.cells, size=size)
        for size in sorted({row["batch"] for row in rows})
    }
    content: dict[str, Any] = {
        "run": run,
        "name": plan.sweep.name,
        "sweep_key": plan.sweep_key,
        "settings_key": key_of(settings),
        "settings": dict(settings),
        "record": {**record, "load_after": os.getloadavg()[0]},
        "finished_at": finished.isoformat(),
        "forward_ms": dict(forwards),
        "cells": {key: {"run": run, **entry} for key, entry in by_batch.pop(1).items()},
        "batches": {str(size): entries for size, entries in by_batch.items()},
    }
    folder = store.bench_dir(run)
    content["rows_sha256"] = write_table(folder / "rows.parquet", rows)
    publish_json(folder / "bench.json", content)
    for key, entry in content["cells"].items():
        if entry["flag"]:
            log.warning("bench of %s: %s", plan.cell(key).label, entry["flag"])
    return BenchReport(run, folder, content)
