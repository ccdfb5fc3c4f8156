"""Stages of `mulosd train tiny`, in the order of training (light: the command line offers them)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GPTRecipe:
    """Budget and rates. The learning-rate schedule follows the share of `minutes` that is used up.

    batches: (side in pixels, images) of the steps in turn; a model of several grids takes one of each.
    """

    minutes: float
    batches: tuple[tuple[int, int], ...]
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    decay_share: float = 0.4
    drop_condition: float = 0.1
    seed: int = 0
    report_every: int = 100
    bf16: bool = True
    compiled: bool = False


@dataclass(frozen=True)
class Stage:
    """One GPT: its grid, training recipe, the model it starts from, and all its grids if it has several."""

    grid: int
    recipe: GPTRecipe
    lower: str | None
    grids: tuple[int, ...] = ()


STAGES = {
    "low": Stage(8, GPTRecipe(minutes=32, batches=((32, 96),), compiled=True), None),
    "mid": Stage(16, GPTRecipe(minutes=42, batches=((64, 32),), muon_rate=0.015, adam_rate=2e-3, compiled=True), "low"),
    "high": Stage(
        32, GPTRecipe(minutes=108, batches=((128, 8),), muon_rate=0.01, adam_rate=1e-3, compiled=True), "mid"
    ),
    "multi": Stage(
        16,
        GPTRecipe(minutes=65, batches=((64, 32), (32, 96)), muon_rate=0.015, adam_rate=2e-3, compiled=True),
        "mid",
        grids=(8, 16),
    ),
}
STAGE_NAMES = ("vq", *STAGES)
CHOICES = (*STAGE_NAMES, "all")
