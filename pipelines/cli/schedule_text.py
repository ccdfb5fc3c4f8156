"""`mulosd generate --explain`: the resolved schedule of a method on a target and its forwards, from the card only."""

from mulosd.families.card import Card
from mulosd.methods import SamplerKnobs
from mulosd.methods.cost import Grids, Range, Sampling

KINDS = ("draft", "verify", "resample", "refresh", "total")


def explain(method: SamplerKnobs, card: Card) -> list[str]:
    """Lines: grids, samplers, every knob (None: the preset decides), cycles, forwards by kind."""
    grids = Grids(card.grid, card.grid, card.draft_grid or 0, card.draft_grid or 0)
    drafting = method.draft_sampling(card.sampler)
    lines = [f"{method.name} on {card.target_id}: {card.grid} x {card.grid} tokens of {card.codebook_size} codes"]
    if drafting:
        lines.append(f"draft grid         {card.draft_grid} x {card.draft_grid}, ratio {grids.ratio}")
    lines.append(f"target sampler     {_pairs(method.target_sampling(card.sampler))}")
    if drafting:
        lines.append(f"draft sampler      {_pairs(drafting)}")
    lines += [f"{key:<18} {value}" for key, value in method.resolved().items()]
    return [*lines, *_forward_lines(method, grids)]


def _forward_lines(method: SamplerKnobs, grids: Grids) -> list[str]:
    known = method.forward_passes(grids)
    if known is None:
        text = f"not known in advance: {method.name} has no formula; ar takes {grids.num_tokens}"
        return [f"forwards           {text}"]
    lines = [f"cycles             {_span(known.cycles)}"] if known.cycles.high else []
    counts = {kind: getattr(known, kind) for kind in KINDS}
    listed = [f"{kind} {_span(count)}" for kind, count in counts.items() if count.high]
    lines.append(f"forwards           {', '.join(listed)}; ar takes {grids.num_tokens}")
    return lines + [f"{'':<18} {line}" for line in method.explain_forwards(grids)]


def _span(count: Range) -> str:
    return str(count.low) if count.low == count.high else f"{count.low} to {count.high}"


def _pairs(settings: Sampling) -> str:
    return " ".join(f"{key}={value:g}" for key, value in settings._asdict().items())
