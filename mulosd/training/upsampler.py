"""`mulosd train upsampler`: one latent up-sampler on streamed scenes, resumable within its time budget.

Pairs are the codes of a scene rendered small and the same scene rendered large. Three losses, the arms of the paper's
ablation (docs/upsamplers.md "Learned up-samplers"): `ce` token cross-entropy over cosine similarities; `pixel` MSE plus
a perceptual distance through the frozen decoder, straight through the choice of codes; `gan` the same plus a
patch critic in the last part of the budget. Optimiser, schedule and all weights are this project's choice: none are
published.
"""

import io
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from mulosd.errors import ConfigError, unknown_name
from mulosd.families.card import Card, family_folder, load_card, read_family
from mulosd.families.latent_card import PREFIX, LatentCard, read_latent, stem
from mulosd.files.folders import prepare_folder
from mulosd.files.publish import publish_bytes, sha256_hex
from mulosd.files.unpickle import unpickle
from mulosd.models.vq import VQModel
from mulosd.scenes.render import render
from mulosd.scenes.world import Scene, sample_training_scene
from mulosd.targets import load_target
from mulosd.training.gpt import CHECKPOINT_SECONDS, Progress
from mulosd.training.upsampler_losses import PatchCritic, Perceptual, build_perceptual, critic_loss
from mulosd.training.vq import to_unit
from mulosd.upsample.latent import LatentConfig, LatentNet

log = logging.getLogger(__name__)

LOSSES = ("ce", "pixel", "gan")

IMAGES_TIMES_RATIO = 16  # bounds the cost of a step, which the decoder's attention over large images rules

Report = Callable[[Progress, float], None]


@dataclass(frozen=True)
class UpsamplerRecipe:
    """Budget, rates and weights. Rates and the critic's start follow the share of `minutes` that is used up.

    tokenizer_sha256: of the file whose codes the pairs consist of. low_px, high_px: sides of the two renderings.
    temperature: of `ce`'s similarities. warm_share: of the budget, before the critic's loss counts.
    """

    loss: str
    tokenizer_sha256: str
    low_px: int
    high_px: int
    batch: int
    minutes: float = 5.0
    rate: float = 2e-3
    decay_share: float = 0.5
    temperature: float = 0.05
    perceptual: str = "effnet-lite0"
    perceptual_weight: float = 0.2
    critic_weight: float = 0.02
    critic_rate: float = 5e-4
    warm_share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise unknown_name("up-sampler loss", self.loss, LOSSES)
        if self.high_px <= self.low_px or self.high_px % self.low_px:
            raise ConfigError(
                f"high_px = {self.high_px} is not a multiple of low_px = {self.low_px}; their ratio is a whole number "
                "above 1."
            )


class Pair(NamedTuple):
    """low [B, h, w] codes of the small rendering; image [B, 3, high_px, high_px] the large one."""

    low: Tensor
    image: Tensor


class TargetRecipe(NamedTuple):
    """A recipe and the target whose tokenizer and sizes it is for."""

    card: Card
    recipe: UpsamplerRecipe


class Trainee(NamedTuple):
    """What a checkpoint holds beside the progress; only `gan` trains the critic."""

    net: LatentNet
    critic: PatchCritic
    optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer


def new_trainee(net: LatentNet, recipe: UpsamplerRecipe) -> Trainee:
    """A network with fresh optimisers."""
    critic = PatchCritic()
    return Trainee(
        net,
        critic,
        torch.optim.AdamW(net.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=1e-4),
        torch.optim.AdamW(critic.parameters(), lr=recipe.critic_rate, betas=(0.5, 0.9), weight_decay=0.0),
    )


def main(
    out: Path, recipe: UpsamplerRecipe, card: Card, *, vq: VQModel | None = None, report: Report | None = None
) -> LatentCard:
    """Train the up-sampler of a target's ratio in the folder `out` and publish it there; the same call resumes.

    Writes `latent-<loss>-<ratio>x.pt` (the checkpoint), `.safetensors` (float16) and, last, `.json`, whose `quality`
    is left to who measures it. vq: the family's tokenizer where it is loaded already.
    """
    prepare_folder(out)
    vq = vq or load_target(card.target_id, folder=card.folder).vq
    torch.manual_seed(recipe.seed)
    config = LatentConfig(recipe.high_px // recipe.low_px, vq.config.codebook_dim)
    trainee = new_trainee(LatentNet(config), recipe)
    perceptual = None if recipe.loss == "ce" else build_perceptual(recipe.perceptual)
    file = out / stem(f"{PREFIX}{recipe.loss}", config.ratio)
    progress = train_upsampler(trainee, vq, recipe, perceptual, file.with_suffix(".pt"), report=report)
    weights = save({key: value.half().contiguous() for key, value in trainee.net.state_dict().items()})
    entry = {
        "family": card.family,
        "file": f"{file.name}.safetensors",
        "sha256": sha256_hex(weights),
        "config": asdict(config),
        "recipe": asdict(recipe),
        "perceptual": perceptual.identity if perceptual else None,
        "trained": asdict(progress),
    }
    publish_bytes(file.with_suffix(".safetensors"), weights)
    path = file.with_suffix(".json")
    known = read_latent(path) if path.exists() else None
    set_quality(path, entry, known.raw["quality"] if known and known.sha256 == entry["sha256"] else {})
    return read_latent(path)


def set_quality(path: Path, entry: Mapping[str, Any], quality: Mapping[str, Any]) -> None:
    """Publish the card of an up-sampler with its measured quality."""
    text = json.dumps({**entry, "quality": quality}, indent=1, ensure_ascii=False, allow_nan=False)
    publish_bytes(path, (text + "\n").encode("utf-8"))


def recipe_for(family: str, ratio: int, loss: str, *, folder: Path | None = None, **changes: Any) -> TargetRecipe:
    """The recipe of a loss for the family's first target with this ratio; `changes` are fields of UpsamplerRecipe.

    ConfigError where no target has the ratio.
    """
    folder = folder or family_folder(family)
    cards = [load_card(target, folder) for target in read_family(folder)["targets"]]
    found = next((card for card in cards if card.ratio == ratio), None)
    if found is None:
        known = ", ".join(f"{card.ratio} ({card.target_id})" for card in cards if card.ratio)
        raise ConfigError(f"--ratio {ratio}: no target of {family} has that ratio to its drafter; allowed: {known}.")
    recipe = UpsamplerRecipe(
        loss=loss,
        tokenizer_sha256=found.raw["parts"]["vq"]["sha256"],
        low_px=found.image_px // ratio,
        high_px=found.image_px,
        batch=IMAGES_TIMES_RATIO // ratio,
        **changes,
    )
    return TargetRecipe(found, recipe)


def train_upsampler(
    trainee: Trainee,
    vq: VQModel,
    recipe: UpsamplerRecipe,
    perceptual: Perceptual | None,
    checkpoint: Path,
    *,
    report: Report | None = None,
) -> Progress:
    """Train in place until the budget is used; resumes from `checkpoint` when that file exists.

    vq: frozen. perceptual: None for loss `ce`. report(progress, loss) is called after every step. ConfigError where
    the checkpoint was made by another recipe (more minutes continue it).
    """
    progress = resume(trainee, recipe, checkpoint)
    budget = recipe.minutes * 60
    resumed_at = last_saved = progress.seconds
    while progress.seconds < budget:
        began = time.perf_counter()
        share = progress.seconds / budget
        _set_rate(trainee.optimizer, recipe.rate * rate_scale(progress.step, share, recipe.decay_share))
        # Keyed by the step, so that a resumed run draws what an uninterrupted one would have drawn.
        rng = np.random.default_rng([recipe.seed, recipe.high_px, progress.step])
        pair = make_pair(vq, [sample_training_scene(rng) for _ in range(recipe.batch)], recipe)
        loss = _step(trainee, vq, recipe, perceptual, pair, is_adversarial=share >= recipe.warm_share)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {progress.step}")
        progress.step += 1
        progress.images += recipe.batch
        progress.seconds += time.perf_counter() - began
        if report is not None:
            report(progress, loss)
        if progress.seconds - last_saved > CHECKPOINT_SECONDS:
            last_saved = progress.seconds
            save_checkpoint(trainee, recipe, progress, checkpoint)
    if progress.seconds > resumed_at or not checkpoint.exists():
        save_checkpoint(trainee, recipe, progress, checkpoint)
    return progress


def rate_scale(step: int, share: float, decay_share: float) -> float:
    """Share of the full rate: 30 steps of warm-up, constant, then linear to 2 % over the last part of the budget."""
    return min(1.0, (step + 1) / 30, max(0.02, (1 - share) / decay_share))


@torch.no_grad()
def make_pair(vq: VQModel, scenes: list[Scene], recipe: UpsamplerRecipe) -> Pair:
    """The two renderings of every scene, the small one as codes."""
    small, large = (
        to_unit(torch.from_numpy(np.stack([render(scene, size) for scene in scenes])))
        for size in (recipe.low_px, recipe.high_px)
    )
    return Pair(vq.encode(small), large)


def _step(
    trainee: Trainee,
    vq: VQModel,
    recipe: UpsamplerRecipe,
    perceptual: Perceptual | None,
    pair: Pair,
    *,
    is_adversarial: bool,
) -> float:
    vectors = trainee.net(vq.quantize.lookup(pair.low))
    if perceptual is None:
        loss = token_loss(vectors, vq, pair.image, recipe.temperature)
    else:
        made = decode_straight_through(vq, vectors)
        loss = F.mse_loss(made, pair.image) + recipe.perceptual_weight * perceptual.distance(made, pair.image)
        if recipe.loss == "gan":
            _critic_step(trainee, pair.image, made.detach())
            if is_adversarial:
                loss = loss - recipe.critic_weight * trainee.critic(made).mean()
    trainee.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(trainee.net.parameters(), 1.0)
    trainee.optimizer.step()
    return float(loss.detach())


def token_loss(vectors: Tensor, vq: VQModel, image: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the large rendering's codes under softmax(similarity / temperature)."""
    with torch.no_grad():
        wanted = vq.encode(image)
    logits = vectors.movedim(1, -1) @ vq.quantize.codebook().T / temperature
    return F.cross_entropy(logits.flatten(0, 2), wanted.flatten())


def decode_straight_through(vq: VQModel, vectors: Tensor) -> Tensor:
    """The image of the nearest codes; gradients reach `vectors` as if nothing had been rounded."""
    chosen = vq.quantize.lookup(vq.quantize.nearest(vectors.detach()))
    return vq.decode_latent(vectors + (chosen - vectors).detach())


def _critic_step(trainee: Trainee, true: Tensor, made: Tensor) -> None:
    loss = critic_loss(trainee.critic(true), trainee.critic(made))
    trainee.critic_optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    trainee.critic_optimizer.step()


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def save_checkpoint(trainee: Trainee, recipe: UpsamplerRecipe, progress: Progress, path: Path) -> None:
    """Published as a whole, so that a kill leaves the previous checkpoint."""
    state = {name: part.state_dict() for name, part in trainee._asdict().items()}
    buffer = io.BytesIO()
    torch.save({**state, "recipe": asdict(recipe), "progress": asdict(progress)}, buffer)
    publish_bytes(path, buffer.getvalue())


def resume(trainee: Trainee, recipe: UpsamplerRecipe, path: Path) -> Progress:
    """Load a checkpoint in place where there is one; refuse one of another recipe."""
    if not path.exists():
        return Progress()
    state: dict[str, Any] = unpickle(path)
    for name, value in asdict(recipe).items():
        if name != "minutes" and state["recipe"][name] != value:
            raise ConfigError(
                f"{path}: was trained with {name} = {state['recipe'][name]}, now {value} is asked for; "
                "choose another --out or remove the checkpoint."
            )
    for name, part in trainee._asdict().items():
        part.load_state_dict(state[name])
    progress = Progress(**state["progress"])
    log.info("resumed %s at step %d (%.1f minutes)", path, progress.step, progress.seconds / 60)
    return progress
