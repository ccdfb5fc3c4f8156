"""`mulosd train tiny`: the tiny family from nothing, stage by stage, resumable.

Stages: vq -> low -> mid -> high, each model starting from the one below with its rotary positions scaled to
the same relative layout; multi starts from mid and serves the grids of low and mid. A work folder keeps checkpoints;
`publish` writes float16 safetensors and the card.
"""

import hashlib
import json
import logging
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from mulosd.errors import DataError, unknown_name
from mulosd.files.folders import prepare_folder, refuse_package
from mulosd.files.unpickle import unpickle
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, tiny_gpt
from mulosd.models.vq import VQConfig, VQModel
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.render import render
from mulosd.scenes.world import sample_training_scene
from mulosd.training.gpt import Progress, init_weights, start_from, train_gpt
from mulosd.training.stages import CHOICES, STAGE_NAMES, STAGES, GPTRecipe, Stage
from mulosd.training.vq import VQRecipe, train_vq

log = logging.getLogger(__name__)

VQ = VQConfig(ch=64, ch_mult=(1,), num_res_blocks=1, z_channels=64, codebook_size=1024, patch=4)
VQ_RECIPE = VQRecipe()
VQ_SEED = 0


# target id -> (model, drafter, image side in pixels)
TARGETS = {
    "tiny-low": ("low", None, 32),
    "tiny-mid": ("mid", "low", 64),
    "tiny-high": ("high", "low", 128),
    "tiny-multi": ("multi", "low", 64),
}
# temperature 0.8: chosen on val scenes among 1, 0.8 and 0.6; the guidances are replaced by `mulosd measure`
SAMPLER = {"guidance": 1.5, "temperature": 0.8, "top_k": 0, "top_p": 1.0, "draft_guidance": 1.5}


def gpt_config(name: str) -> GPTConfig:
    """Configuration of one of the GPTs."""
    grid, grids = STAGES[name].grid, STAGES[name].grids
    return GPTConfig(
        dim=128,
        n_layers=6,
        n_heads=4,
        vocab_size=VQ.codebook_size,
        grid=grid,
        prefix_len=voc.MAX_WORDS + bool(grids),  # the resolution token
        grids=grids,
        ffn_dim=384,
        rope_scale=STAGES["low"].grid / grid,
        prefix_attention="identity",
        axial_positions=True,
    )


def card_config(config: GPTConfig) -> dict[str, Any]:
    """A configuration as cards hold it: fields younger than the first card are left out at their defaults, so that the
    content hash of unchanged weights stands."""
    young = ("positions", "logits_dtype", "grids")
    defaults = {field.name: field.default for field in fields(config)}
    return {key: value for key, value in asdict(config).items() if key not in young or value != defaults[key]}


def main(out: Path, *, stage: str = "all", minutes: float | None = None) -> None:
    """Train one stage or all; `minutes` replaces the stage's budget (GPTs only)."""
    if stage not in CHOICES:
        raise unknown_name("training stage", stage, CHOICES)
    prepare_folder(out)
    for name in STAGE_NAMES if stage == "all" else (stage,):
        if name == "vq":
            train_vq_stage(out)
        else:
            train_gpt_stage(out, name, minutes)
    if stage == "all":
        publish(out, out)


def train_vq_stage(out: Path) -> None:
    """Train the tokenizer unless its checkpoint is there."""
    path = out / "vq.pt"
    if path.exists():
        log.info("%s is there; the tokenizer is not trained again", path)
        return
    torch.manual_seed(VQ_SEED)
    model = VQModel(VQ)
    train_vq(model, VQ_RECIPE)
    partial = path.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(path)


def train_gpt_stage(out: Path, name: str, minutes: float | None = None) -> Progress:
    """Train one GPT, resuming its checkpoint; the VQ and the model below must be trained."""
    stage = STAGES[name]
    vq = load_vq(out)
    torch.manual_seed(stage.recipe.seed)
    model = tiny_gpt(gpt_config(name))
    init_weights(model)
    checkpoint = out / f"{name}.pt"
    if stage.lower and not checkpoint.exists():
        start_from(model, load_gpt(out, stage.lower))
    recipe = stage.recipe if minutes is None else GPTRecipe(**{**asdict(stage.recipe), "minutes": minutes})
    return train_gpt(model, vq, recipe, checkpoint)


def load_vq(out: Path) -> VQModel:
    """The trained tokenizer of a work folder, frozen, its codes rounded as they are published."""
    model = VQModel(VQ)
    model.load_state_dict(as_published(_read(out / "vq.pt", "vq")))
    return model.eval().requires_grad_(False)


def load_gpt(out: Path, name: str) -> ImageGPT:
    """A trained GPT of a work folder."""
    model = tiny_gpt(gpt_config(name))
    model.load_state_dict(_read(out / f"{name}.pt", name)["model"])
    return model


def as_published(state: dict[str, Any]) -> dict[str, Any]:
    """Weights rounded to float16 and back: codes must not move between training and use."""
    return {key: value.half().float() for key, value in state.items()}


def publish(work: Path, folder: Path, quality: dict[str, Any] | None = None) -> None:
    """Write safetensors (float16) and card.json of the family into `folder`."""
    prepare_folder(folder)
    parts: dict[str, Any] = {"vq": _write_part(folder, "vq", _read(work / "vq.pt", "vq"))}
    parts["vq"] |= {"config": asdict(VQ), "recipe": asdict(VQ_RECIPE) | {"init_seed": VQ_SEED}}
    for name, stage in STAGES.items():
        state = _read(work / f"{name}.pt", name)
        parts[name] = _write_part(folder, name, state["model"])
        parts[name] |= {
            "config": card_config(gpt_config(name)),
            "recipe": recipe_of(state, stage) | {"starts_from": stage.lower},
            "trained": state["progress"],
        }
    targets = {
        target: {"model": model, "drafter": drafter, "image_px": pixels, "sampler": SAMPLER}
        for target, (model, drafter, pixels) in TARGETS.items()
    }
    card = {
        "family": "tiny",
        "world_version": voc.WORLD_VERSION,
        "data_sha256": world_hash(),
        "positions": "2-D rotary scaled by rope_scale, plus learned row and column vectors",
        "prefix_attention": "attended, unrotated keys and queries",
        "null_condition": "NULL_ID in every prefix row",
        "logits_dtype": "float32",
        "multi_grid": any(stage.grids for stage in STAGES.values()),
        "parts": parts,
        "targets": targets,
        "quality": quality or {},
    }
    _write_json(folder / "card.json", card)


def recipe_of(state: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """The recipe that a checkpoint was trained by. Those of 0.1.0 do not hold it: of them the minutes are known."""
    minutes = round(state["progress"]["seconds"] / 60)
    recipe: dict[str, Any] = state.get("recipe") or asdict(stage.recipe) | {"minutes": minutes}
    return recipe


def world_hash(count: int = 256, size: int = 64) -> str:
    """sha256 of the first training scenes and their renderings: the data is whatever these functions draw."""
    digest = hashlib.sha256()
    rng = np.random.default_rng(0)
    for _ in range(count):
        scene = sample_training_scene(rng)
        digest.update(json.dumps(scene.to_json(), sort_keys=True).encode())
        digest.update(render(scene, size).tobytes())
    return digest.hexdigest()


def set_quality(
    folder: Path, quality: dict[str, Any], sampler: dict[str, dict[str, float]], *, out: Path | None = None
) -> None:
    """Write measured quality and chosen sampler presets (target id -> fields) into the card of `folder`, or into a copy
    of it, the file `out`."""
    path = folder / "card.json"
    refuse_package(out or path)
    card = json.loads(path.read_text(encoding="utf-8"))
    card["quality"] = quality
    for target, preset in sampler.items():
        card["targets"][target]["sampler"] |= preset
    _write_json(out or path, card)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _write_part(folder: Path, name: str, state: dict[str, Any]) -> dict[str, Any]:
    path = folder / f"{name}.safetensors"
    partial = path.with_suffix(".partial")
    save_file({key: value.half().contiguous() for key, value in state.items()}, partial)
    partial.chmod(0o644)  # safetensors writes private files; these travel in a wheel
    os.replace(partial, path)
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _read(path: Path, stage: str) -> dict[str, Any]:
    if not path.exists():
        raise DataError(f"{path}: not trained yet; run `mulosd train tiny --stage {stage}` first.")
    state: dict[str, Any] = unpickle(path)
    return state
