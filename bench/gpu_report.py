"""What a run of `bench.gpu` found, as rows and as a page."""

import statistics
from collections.abc import Mapping
from typing import Any

from dashboards.markdown import markdown_table

STATIC, EAGER = AR_LOOPS = "ar, static", "ar, eager"
MARGIN = 1.02  # a latency ratio this much above the forward ratio is flagged
COLUMNS = (
    "phase",
    "method",
    "images",
    "median_s",
    "forwards",
    "ms_per_forward",
    "floor_ms",
    "speed_up",
    "forward_ratio",
    "flag",
)


def summarise(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per grid and method, with medians over its images and ratios against the faster AR loop of its grid.

    floor_ms: weight bytes of the target over the measured bandwidth. flag: why a row should not be trusted, or "".
    """
    bandwidth = results.get("bandwidth", {}).get("bytes_per_s")
    rows = []
    for phase, found in results.items():
        methods = found.get("methods", {})
        base = min((_median(methods[name], "seconds") for name in AR_LOOPS if name in methods), default=None)
        for method, entry in methods.items():
            seconds, forwards = _median(entry, "seconds"), _median(entry, "forwards")
            ratios = {"speed_up": base / seconds, "forward_ratio": found["num_tokens"] / forwards}
            flags = [] if entry["is_warm"] else ["warm-up only"]
            if ratios["speed_up"] > ratios["forward_ratio"] * MARGIN:
                flags.append("faster than its forwards explain")
            row = {
                "phase": phase,
                "method": method,
                "images": len(entry["images"]),
                "median_s": seconds,
                "forwards": forwards,
                "ms_per_forward": 1000 * seconds / forwards,
                "floor_ms": 1000 * found["weight_bytes"] / bandwidth if bandwidth else None,
            }
            rows.append({**row, **ratios, "flag": "; ".join(flags)})
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """The page: setting, parity, bandwidth, t(m), rows, and median seconds by phase."""
    setup, record, results = content["setup"], content["record"], content["results"]
    lines = [
        f"# {setup['name']} on {setup['device_name']}",
        "",
        f"torch {record['versions']['torch']}, {setup['dtype']}, batch 1, commit {record['git']['commit']}, load "
        f"{record['machine']['load_1min']:.2f} before and {content['load_after']:.2f} after. Random weights; MuLo-SD "
        f"is set to resample {setup['resampled_fraction']:.0%}. Speed-ups are against the faster AR loop.",
        "",
    ]
    for phase, found in results.items():
        lines += [f"- {phase}: {key} {found[key]}" for key in ("stopped", "error") if key in found]
        for name, case in found.get("cases", {}).items():
            verdict = "agrees" if case["agrees"] else "DIFFERS"
            lines.append(f"- parity of {name}: {verdict}, largest difference {case['max_difference']:.1e}")
        if "bytes_per_s" in found:
            lines.append(f"- copy bandwidth {found['bytes_per_s'] / 1e9:.1f} GB/s")
        for model, times in found.get("forward_ms", {}).items():
            shown = " · ".join(f"{m}: {ms:.2f}" for m, ms in times.items())
            lines.append(f"- t(m) of the {model}, {phase}, m: ms  {shown}")
        for method, entry in found.get("methods", {}).items():
            if phases := [image["phases"] for image in entry["images"] if "phases" in image]:
                shown = " · ".join(f"{name} {statistics.median(p[name] for p in phases):.3f}" for name in phases[0])
                lines.append(f"- seconds by phase, {phase}, {method}: {shown}")
    rows = [[_cell(row[key]) for key in COLUMNS] for row in content["rows"]]
    return "\n".join([*lines, "", markdown_table(COLUMNS, rows)]) + "\n"


def _median(entry: Mapping[str, Any], key: str) -> float:
    return statistics.median(image[key] for image in entry["images"])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)
