"""`mulosd generate --explain`: the resolved schedule of a method on a target and its forwards. From the card alone."""

from dataclasses import fields
from typing import Any

from mulosd.families.card import Card
from mulosd.methods import DraftOnly, MuLoSD, SamplerKnobs
from mulosd.methods.cost import (
    SAMPLER_KEYS,
    Forecast,
    Grids,
    Range,
    draft_sampler,
    forecast,
    one_island_fronts,
    target_sampler,
)

KINDS = ("draft", "verify", "resample", "refresh", "total")


def explain(method: SamplerKnobs, card: Card) -> list[str]:
    """Lines: grids, samplers, every knob (None: the preset decides), cycles, forwards by kind."""
    grids = Grids(card.grid, card.grid, card.draft_grid or 0, card.draft_grid or 0)
    known = forecast(method, grids)
    lines = [f"{method.name} on {card.target_id}: {card.grid} x {card.grid} tokens of {card.codebook_size} codes"]
    if isinstance(method, DraftOnly):
        lines.append(f"draft grid         {card.draft_grid} x {card.draft_grid}, ratio {grids.ratio}")
    lines.append(f"target sampler     {_pairs(target_sampler(method, card.sampler))}")
    if isinstance(method, DraftOnly):
        lines.append(f"draft sampler      {_pairs(draft_sampler(method, card.sampler))}")
    lines += [f"{key:<18} {value}" for key, value in _schedule_knobs(method).items()]
    if known is None:
        text = f"not known in advance: {method.name} has no formula; ar takes {card.num_tokens}"
        return [*lines, f"forwards           {text}"]
    return [*lines, *_forward_lines(method, grids, known)]


def _schedule_knobs(method: SamplerKnobs) -> dict[str, Any]:
    """All knobs but those of the samplers, `kv` resolved, and which of them this schedule never looks at."""
    sampling = {prefix + key for key in SAMPLER_KEYS for prefix in ("", "draft_")}
    knobs = {f.name: getattr(method, f.name) for f in fields(method) if f.name not in sampling}
    idle = {found.knob: "not used" for found in method.idle()}
    if isinstance(method, MuLoSD):
        knobs["kv"] = method.kv_policy if method.kv != "auto" else f"{method.kv_policy} (auto)"
        if method.resampled_fraction is not None:
            idle["tau"] = "per image and cycle, by resampled_fraction"
    return knobs | idle


def _forward_lines(method: SamplerKnobs, grids: Grids, known: Forecast) -> list[str]:
    num_tokens = grids.height * grids.width
    lines = [f"cycles             {_span(known.cycles)}"] if isinstance(method, MuLoSD) else []
    counts = {kind: getattr(known, kind) for kind in KINDS}
    listed = [f"{kind} {_span(count)}" for kind, count in counts.items() if count.high]
    lines.append(f"forwards           {', '.join(listed)}; ar takes {num_tokens}")
    if isinstance(method, MuLoSD) and method.resample == "islands" and not method.redrafts:
        whole = one_island_fronts(method, grids)
        lines.append(
            f"                   (resample: {whole} if everything is rejected; the bound is one cell at a time)"
        )
    return lines


def _span(count: Range) -> str:
    return str(count.low) if count.low == count.high else f"{count.low} to {count.high}"


def _pairs(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value:g}" for key, value in settings.items())
