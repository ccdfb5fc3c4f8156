"""A throw-away family with the layout of `tiny`, small enough to build in a moment; its weights are random."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, tiny_gpt
from mulosd.models.vq import VQConfig, VQModel
from mulosd.training import tiny
from mulosd.training.gpt import init_weights
from mulosd.training.stages import GPTRecipe, Stage

VQ = VQConfig(ch=32, ch_mult=(1,), num_res_blocks=1, z_channels=32, codebook_size=48, codebook_dim=4, patch=4)
GRIDS = {"low": 2, "mid": 4, "high": 8, "multi": 4}


def gpt_config(name: str, published: GPTConfig) -> GPTConfig:
    """The shipped configuration `published` of a model, made small."""
    grid = GRIDS[name]
    return replace(
        published,
        dim=32,
        n_layers=2,
        n_heads=2,
        ffn_dim=32,
        vocab_size=VQ.codebook_size,
        grid=grid,
        rope_scale=2 / grid,
        grids=_small(published.grids),
    )


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make `mulosd.training.tiny` train and publish the small family."""
    published = {name: tiny.gpt_config(name) for name in GRIDS}
    patch.setattr(tiny, "VQ", VQ)
    patch.setattr(tiny, "gpt_config", lambda name: gpt_config(name, published[name]))
    patch.setattr(
        tiny,
        "TARGETS",
        {
            "tiny-low": ("low", None, 8),
            "tiny-mid": ("mid", "low", 16),
            "tiny-high": ("high", "low", 32),
            "tiny-multi": ("multi", "low", 16),
        },
    )
    stages = {
        name: replace(stage, grid=GRIDS[name], recipe=_recipe(stage, GRIDS[name]), grids=_small(stage.grids))
        for name, stage in tiny.STAGES.items()
    }
    patch.setattr(tiny, "STAGES", stages)


def _small(grids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // 4 for size in grids)


def _recipe(stage: Stage, grid: int) -> GPTRecipe:
    return GPTRecipe(minutes=1, batches=tuple((4 * size, 2) for size in _small(stage.grids) or (grid,)), bf16=False)


def gpt(name: str, *, seed: int = 0) -> ImageGPT:
    """An initialised model of the shrunk family whose output is not zero everywhere."""
    torch.manual_seed(seed)
    model = tiny_gpt(tiny.gpt_config(name))
    init_weights(model)
    torch.nn.init.normal_(model.output.weight, std=0.2)
    return model


def work_folder(folder: Path) -> Path:
    """Checkpoints of every stage as training leaves them, untrained."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.save(VQModel(VQ).state_dict(), folder / "vq.pt")
    progress = {"step": 0, "seconds": 0.0, "images": 0}
    for seed, name in enumerate(GRIDS):
        torch.save({"model": gpt(name, seed=seed).state_dict(), "progress": progress}, folder / f"{name}.pt")
    return folder
