"""A bench run for people: every method at every batch size in one table, then t(m) of each target."""

from collections.abc import Iterator, Mapping
from typing import Any

from dashboards.markdown import aligned_table
from dashboards.numbers import DASH

PHASES = ("condition", "draft", "upsample", "verify", "resample", "downsample", "detokenize")
HEAD = ("", "B", "images/s", "to ar [95 %]", "s/call", "forwards", *PHASES)
LEGEND = (
    "B images per call; images/s and median s/call from condition ready to last token, against ar at the same B; "
    "forwards and milliseconds by phase per image, refreshes in resample"
)


def bench_lines(bench: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[str]:
    """Where a bench ran, its table, its doubts and its t(m). bench: content of bench.json; labels: cell key -> name."""
    settings, record = bench["settings"], bench["record"]
    yield (
        f"{settings['threads']} threads on {settings['device_name']}, torch {settings['torch']}, "
        f"load {record['machine']['load_1min']:.1f} before and {record['load_after']:.1f} after"
    )
    yield LEGEND
    by_batch = {1: bench["cells"]} | {int(size): cells for size, cells in bench.get("batches", {}).items()}
    entries = [(size, key, entry) for size, cells in by_batch.items() for key, entry in cells.items()]
    yield from aligned_table([HEAD, *(_row(labels[key], size, entry) for size, key, entry in entries)])
    for size, key, entry in entries:
        if entry["flag"]:
            yield f"{labels[key]} at B = {size}: {entry['flag']}"
    for target, models in bench["forward_ms"].items():
        for model, times in models.items():
            listed = " · ".join(f"{m}: {ms:.1f}" for m, ms in times.items())
            yield f"t(m), one guided forward of m tokens, {target} {model}, m: ms  {listed}"


def _row(label: str, size: int, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Older runs lack images per second and phases, or one of these."""
    limits = entry.get("interval")
    interval = f" [{limits[0]:.2f}, {limits[1]:.2f}]" if limits else ""
    ratio = "no baseline" if entry["speed_up"] is None else f"{entry['speed_up']:.2f}×{interval}"
    phases = [entry.get("phases", {}).get(f"time_{name}_s") for name in PHASES]
    spent = [DASH if seconds is None else f"{1000 * seconds:.1f}" for seconds in phases]
    per_s, per_call = entry.get("images_per_s", 1 / entry["mean_s"]), entry["median_s"]
    return (label, str(size), f"{per_s:.3g}", ratio, f"{per_call:.3f}", f"{entry['forwards']:.1f}", *spent)
