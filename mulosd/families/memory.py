"""Device memory that a target needs, from its card only: weights and caches, before anything is loaded. No torch.

Activations are not in it: they depend on the widest call and are small beside these, apart from the tokenizer's at
high resolution. The numbers are bytes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mulosd.families.card import Card
from mulosd.families.encoder_facts import condition_len
from mulosd.families.weight_files import num_values

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
VIRTUAL_KEYS = 2  # cache slots of a collapsed prefix (mulosd.models.kv_cache)


@dataclass(frozen=True)
class Requirement:
    """Bytes of one thing; None where the card does not say how large it is."""

    name: str
    num_bytes: int | None


def memory_needs(
    card: Card, *, dtype: str, batch_size: int, drafters: Collection[str] | None = None
) -> list[Requirement]:
    """Weights of every part, then the K/V caches of model and drafter for a batch (with guidance: two rows each).

    drafters: values of the knob `drafter` that will draft; None is every one that can. A checkpoint that drafts for
    nobody is never loaded.
    """
    entry, drafting = card.raw["targets"][card.target_id], card.drafters if drafters is None else drafters
    idle = entry["drafter"] if "checkpoint" not in drafting else None
    needs = [Requirement(name, _weights(card, name, dtype)) for name in card.parts if name != idle]
    config = card.raw["parts"][entry["model"]]["config"]
    caches = [(entry["model"], config, "guidance")]
    if "checkpoint" in drafting:
        caches.append((entry["drafter"], card.raw["parts"][entry["drafter"]]["config"], "draft_guidance"))
    if "self" in drafting:
        caches.append((f"{entry['model']} as drafter", {**config, "grid": card.draft_grid}, "draft_guidance"))
    length = condition_len(card)
    for name, shape, key in caches:
        rows = batch_size * (2 if card.sampler[key] > 1 else 1)
        values = cache_values({**shape, "prefix_len": length}, rows)
        needs.append(Requirement(f"{name} cache", values * BYTES[dtype]))
        if rows > batch_size and shape.get("positions") == "learned":
            needs.append(Requirement(f"{name} null prefix", null_values(shape, length) * BYTES[dtype]))
    return needs


def cache_values(config: Mapping[str, Any], rows: int) -> int:
    """Numbers in the K/V cache of one model: every layer, prefix, grid, scratch (one per grid row) and trash slot."""
    is_collapsed = config.get("positions") != "learned" and config.get("prefix_attention", "zero") == "zero"
    prefix = VIRTUAL_KEYS if is_collapsed else config["prefix_len"]
    slots = prefix + config["grid"] ** 2 + config["grid"] + 1
    return int(2 * config["n_layers"] * rows * slots * config["dim"])


def null_values(config: Mapping[str, Any], length: int) -> int:
    """Numbers in the null prefix of `length` rows that AR-DTok keeps: K/V of every layer, and its features."""
    return int((2 * config["n_layers"] + 1) * length * config["dim"])


def memory_lines(card: Card, *, dtype: str, batch_size: int, drafters: Collection[str] | None = None) -> list[str]:
    """The needs as text, the total first."""
    needs = memory_needs(card, dtype=dtype, batch_size=batch_size, drafters=drafters)
    known = sum(need.num_bytes or 0 for need in needs)
    unknown = [need.name for need in needs if need.num_bytes is None]
    more = f" and {', '.join(unknown)} (size unknown before conversion)" if unknown else ""
    listed = ", ".join(f"{need.name} {_gib(need.num_bytes)}" for need in needs if need.num_bytes is not None)
    return [
        f"memory of {card.target_id}: {_gib(known)}{more} per device at batch size {batch_size} in {dtype},"
        " activations not included",
        f"  {listed}",
    ]


def _weights(card: Card, name: str, dtype: str) -> int | None:
    entry = card.raw["parts"][name]
    width = BYTES[entry.get("compute_dtype", dtype)]
    if "num_params" in entry:
        return int(entry["num_params"]) * width
    path = card.folder / str(entry.get("file", ""))
    return num_values(path) * width if path.is_file() else None


def _gib(num_bytes: int | None) -> str:
    value = (num_bytes or 0) / 2**30
    return f"{value:.2f} GiB" if value >= 0.1 else f"{value * 1024:.1f} MiB"
