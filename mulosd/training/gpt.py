"""Training of one tiny GPT on streamed scenes: fresh images, codes from the frozen VQ, words as condition.

Hidden matrices are trained with Muon, everything else with AdamW; the rate is constant, then falls linearly
over the last part of the time budget. Progress is reported as validation cross-entropy and *text gain*: (CE
with another image's caption - CE with its own) x tokens, in nats per image; it rises long before a
detector finds anything.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.files.unpickle import unpickle
from mulosd.models.condition import Condition
from mulosd.models.image_gpt import ImageGPT, on_grid
from mulosd.models.vq import VQModel
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.render import render
from mulosd.scenes.words import encode_words
from mulosd.scenes.world import Scene, sample_scenes, sample_training_scene
from mulosd.training.stages import GPTRecipe
from mulosd.training.vq import to_unit

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 600.0


@dataclass
class Progress:
    """What a checkpoint resumes from."""

    step: int = 0
    seconds: float = 0.0
    images: int = 0


def words_condition(captions: list[str]) -> Condition:
    """Captions -> ids [B, MAX_WORDS]; all rows are valid, padding is a word."""
    ids = torch.tensor([encode_words(caption) for caption in captions])
    return Condition(ids, torch.ones_like(ids, dtype=torch.bool))


@torch.no_grad()
def scene_codes(vq: VQModel, scenes: list[Scene], size: int) -> Tensor:
    """Codes [B, N] of freshly rendered scenes, raster order."""
    images = np.stack([render(scene, size) for scene in scenes])
    return vq.encode(to_unit(torch.from_numpy(images))).flatten(1)


def init_weights(model: ImageGPT) -> None:
    """Small embeddings, zero output projections (each block starts as the identity)."""
    for name, param in model.named_parameters():
        if name.endswith(("wo.weight", "w2.weight", "output.weight")):
            torch.nn.init.zeros_(param)
        elif name.endswith(("tok_embeddings.weight", "words.weight", "places")):
            torch.nn.init.normal_(param, std=0.1)


def start_from(model: ImageGPT, lower: ImageGPT) -> None:
    """Initialise from a model of one grid; its axes are stretched to the new grids, new words stay as they are."""
    state, fresh = lower.state_dict(), model.state_dict()
    for key in ("row_positions", "col_positions"):
        if key in state:
            state[key] = torch.cat([_stretched(state[key], n) for n in model.config.grids or (model.config.grid,)])
    for key in ("cls_embedding.words.weight", "cls_embedding.places"):
        state[key] = torch.cat([state[key], fresh[key][len(state[key]) :]])
    model.load_state_dict(state)


def _stretched(axis: Tensor, size: int) -> Tensor:
    """Vectors [n, d] along one axis, known at cell centres, at the centres of `size` cells."""
    return F.interpolate(axis.T[None], size=size, mode="linear", align_corners=False)[0].T


def train_gpt(model: ImageGPT, vq: VQModel, recipe: GPTRecipe, checkpoint: Path) -> Progress:
    """Train in place until the budget is used; resumes from `checkpoint` when that file exists."""
    optimizers = _optimizers(model, recipe)
    progress = _resume(model, optimizers, checkpoint)
    arms = [_Arm.of(model, vq, recipe, *batch) for batch in recipe.batches]
    budget = recipe.minutes * 60
    resumed_at = last_saved = progress.seconds
    while progress.seconds < budget:
        began = time.perf_counter()
        scale = min(1.0, (progress.step + 1) / 30, max(0.02, (1 - progress.seconds / budget) / recipe.decay_share))
        # Keyed by the step, so that a resumed run draws what an uninterrupted one would have drawn.
        arm = arms[progress.step % len(arms)]
        rng = np.random.default_rng([recipe.seed, arm.size, progress.step])
        loss = _step(model, vq, recipe, optimizers, arm, rng, scale)
        progress.step += 1
        progress.images += arm.count
        progress.seconds += time.perf_counter() - began
        if progress.step % recipe.report_every == 0:
            for arm in arms:
                report = validate(arm.model, vq, arm.size)
                log.info(
                    "size %d step %d images %d minutes %.1f loss %.4f val_ce %.4f text_gain %.2f",
                    *(arm.size, progress.step, progress.images, progress.seconds / 60, loss),
                    *(report["val_ce"], report["text_gain"]),
                )
        if progress.seconds - last_saved > CHECKPOINT_SECONDS:
            last_saved = progress.seconds
            save_checkpoint(model, optimizers, recipe, progress, checkpoint)
    if progress.seconds > resumed_at or not checkpoint.exists():
        save_checkpoint(model, optimizers, recipe, progress, checkpoint)
    return progress


@torch.no_grad()
def validate(model: ImageGPT, vq: VQModel, size: int, count: int = 48) -> dict[str, float]:
    """Cross-entropy (nats per token) on evaluation scenes and the text gain (nats per image)."""
    scenes = sample_scenes("val", count, 1)
    codes = scene_codes(vq, scenes, size)
    captions = [scene.caption for scene in scenes]
    own = _cross_entropy(model, codes, captions)
    other = _cross_entropy(model, codes, captions[7:] + captions[:7])
    return {"val_ce": own, "text_gain": (other - own) * codes.shape[1]}


def _cross_entropy(model: ImageGPT, codes: Tensor, captions: list[str]) -> float:
    prefix = model.prefix(words_condition(captions), with_null=False)
    logits = model.forward_train(prefix.rows, codes)
    return float(F.cross_entropy(logits.flatten(0, 1), codes.flatten()))


@dataclass(frozen=True)
class _Arm:
    """The model on the grid of images of one size, and how many of them a step takes."""

    model: ImageGPT
    forward: Callable[[Tensor, Tensor], Tensor]
    size: int
    count: int

    @classmethod
    def of(cls, model: ImageGPT, vq: VQModel, recipe: GPTRecipe, size: int, count: int) -> "_Arm":
        grid = size // vq.config.stride
        view = model if grid == model.config.grid else on_grid(model, grid)
        return cls(view, torch.compile(view.forward_train) if recipe.compiled else view.forward_train, size, count)


def _step(
    model: ImageGPT,
    vq: VQModel,
    recipe: GPTRecipe,
    optimizers: list[torch.optim.Optimizer],
    arm: _Arm,
    rng: np.random.Generator,
    scale: float,
) -> float:
    scenes = [sample_training_scene(rng) for _ in range(arm.count)]
    codes = scene_codes(vq, scenes, arm.size)
    condition = words_condition([scene.caption for scene in scenes])
    dropped = torch.from_numpy(rng.random(arm.count) < recipe.drop_condition)
    condition.values[dropped] = voc.NULL_ID
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
        prefix = arm.model.prefix(condition, with_null=False)
        logits = arm.forward(prefix.rows, codes)
    loss = F.cross_entropy(logits.float().flatten(0, 1), codes.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def _optimizers(model: ImageGPT, recipe: GPTRecipe) -> list[torch.optim.Optimizer]:
    def is_hidden(name: str, param: Tensor) -> bool:
        return param.ndim == 2 and "layers." in name

    hidden = [p for n, p in model.named_parameters() if is_hidden(n, p)]
    rest = [p for n, p in model.named_parameters() if not is_hidden(n, p)]
    muon = torch.optim.Muon(hidden, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.01)
    adam = torch.optim.AdamW(rest, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adam]


def save_checkpoint(
    model: ImageGPT, optimizers: list[torch.optim.Optimizer], recipe: GPTRecipe, progress: Progress, path: Path
) -> None:
    """Written beside and renamed, so that a kill leaves the previous checkpoint whole."""
    state: dict[str, Any] = {
        "recipe": asdict(recipe),
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _resume(model: ImageGPT, optimizers: list[torch.optim.Optimizer], path: Path) -> Progress:
    if not path.exists():
        return Progress()
    state = unpickle(path)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    progress = Progress(**state["progress"])
    log.info("resumed %s at step %d (%.1f minutes)", path, progress.step, progress.seconds / 60)
    return progress
