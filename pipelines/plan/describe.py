"""What `mulosd plan` prints: the sweep, its cells and sizes, cost, memory, and weights that are missing."""

from collections.abc import Mapping
from typing import Any

from mulosd.families.memory import memory_lines
from pipelines.plan.budget import describe_hours
from pipelines.plan.cells import Plan


def describe(plan: Plan, cached: Mapping[str, int] | None = None) -> str:
    """Text for `mulosd plan`: the sweep, its cells and sizes; `cached` is cell key -> staged images."""
    sweep = plan.sweep
    per_cell = plan.cells[0]
    lines = [
        f"sweep {sweep.name} ({plan.sweep_key}): {len(plan.cells)} cells × {per_cell.n_samples} images"
        f" in {len(per_cell.chunks)} chunks = {plan.n_samples} images",
        f"prompts: {_pairs(sweep.prompts)} ({len(plan.prompts)} in all"
        + (f", the first {plan.limit} used)" if plan.limit is not None else ")"),
        f"base seed {sweep.base_seed}, batch size {sweep.batch_size}, {sweep.device} {sweep.dtype},"
        f" at most {sweep.max_failed} failed images",
        f"evaluators: {', '.join(sweep.evaluators) or 'none'}",
    ]
    if sweep.bench:
        spec, sizes = sweep.bench, ", ".join(map(str, sweep.bench.batches))
        lines.append(f"bench: {spec.prompts} prompts after {spec.warmup} for warm-up, in batches of {sizes}")
    lines += describe_hours(plan) + describe_weights(plan)
    for cell in plan.cells:
        done = "" if cached is None else f"  {min(cached.get(cell.key, 0), cell.n_samples)}/{cell.n_samples} cached"
        lines.append(f"  {cell.key}  {cell.label}{done}")
    return "\n".join(lines)


def describe_weights(plan: Plan) -> list[str]:
    """Lines for `mulosd plan`: memory that each target needs, and weights that are not there yet."""
    sweep = plan.sweep
    lines = []
    drafters = {source for method in sweep.methods if (source := method.drafted_by())}
    for card in plan.cards.values():
        lines += memory_lines(card, dtype=sweep.dtype, batch_size=sweep.batch_size, drafters=drafters)
        if card.missing:
            lines.append(f"!! {card.fetch_hint} Its keys below are provisional: they depend on the weights.")
    return lines


def _pairs(spec: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in spec.items())
