"""What a sweep is expected to cost, from forwards and a stated time per forward: an estimate, before anything runs.

hours = sum over cells and batches of forwards × ms_per_forward, one device, nothing cached. Forwards are closed forms
where the method has one; MuLo-SD's depend on what the target rejects, so they are a range (`mulosd.methods.cost`). A
stated time holds for one forward of a whole batch on the machine that will run; forwards of many tokens cost more
than those of one, scoring and bench runs are not in it.
"""

import math

from mulosd.errors import ConfigError
from mulosd.methods import SamplerKnobs
from mulosd.methods.cost import Grids, Range
from pipelines.plan.cells import Cell, Plan

Grid = tuple[int, int]


def forwards_per_image(method: SamplerKnobs, grid: Grid, draft_grid: Grid | None) -> Range | None:
    """Forward passes of both models for one image on the target grid (H, W); draft_grid None: no drafter.

    None: not predictable.
    """
    known = method.forward_passes(Grids(*grid, *(draft_grid or (0, 0))))
    return known.total if known else None


def device_hours(plan: Plan) -> Range | None:
    """Hours of one device for all images of predictable cells; None where `ms_per_forward` is not stated."""
    if plan.sweep.ms_per_forward is None:
        return None
    total = Range(0, 0)
    for cell in plan.cells:
        batches = sum(math.ceil(chunk.wanted / plan.sweep.batch_size) for chunk in cell.chunks)
        total += (_passes(cell) or Range(0.0, 0.0)) * batches
    return total * (plan.sweep.ms_per_forward / 3.6e6)


def unpredictable(plan: Plan) -> list[str]:
    """Names of the sweep's methods whose forward passes are not known in advance."""
    return list(dict.fromkeys(cell.method.name for cell in plan.cells if not _passes(cell)))


def check_hours(plan: Plan) -> None:
    """ConfigError where the estimate may exceed `max_hours`: its upper end counts; or where it cannot be known."""
    hours, limit = device_hours(plan), plan.sweep.max_hours
    if limit is not None and (unknown := unpredictable(plan)):
        raise ConfigError(
            f"sweep {plan.sweep.name}: max_hours cannot be kept, as the forward passes of {', '.join(unknown)} are "
            "not known in advance; leave max_hours out."
        )
    if hours is not None and limit is not None and hours.high > limit:
        raise ConfigError(
            f"sweep {plan.sweep.name}: up to {hours.high:.3g} device hours by estimate, max_hours allows {limit:g}; "
            "use fewer prompts (--limit), thin out a grid or raise max_hours."
        )


def describe_hours(plan: Plan) -> list[str]:
    """Lines for `mulosd plan`; [] where `ms_per_forward` is not stated."""
    hours = device_hours(plan)
    if hours is None:
        return []
    sweep = plan.sweep
    unit = "GPU-hours" if sweep.device == "cuda" else "CPU-hours"
    limit = f", max_hours {sweep.max_hours:g}" if sweep.max_hours is not None else ""
    unknown = unpredictable(plan)
    without = [f"  without {', '.join(unknown)}, whose forward passes are not known in advance"] if unknown else []
    return [
        f"cost (estimate): {_span(hours)} {unit} of one device for {plan.n_samples} images, nothing cached{limit}",
        f"  from forwards × a stated {sweep.ms_per_forward:g} ms per forward of a batch of {sweep.batch_size}; "
        "scoring and bench not included; MuLo-SD from nothing rejected to everything resampled",
        *without,
    ]


def _passes(cell: Cell) -> Range | None:
    side = cell.card.draft_grid
    return forwards_per_image(cell.method, cell.grid, (side, side) if side else None)


def _span(hours: Range) -> str:
    return f"{hours.low:.3g}" if hours.low == hours.high else f"{hours.low:.3g} to {hours.high:.3g}"
