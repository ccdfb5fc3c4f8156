"""Training of the tiny VQ tokenizer on streamed scenes.

Three phases in one run: a short unquantised start, k-means over the latents, then vector quantisation
with an exponential-moving-average codebook and a cosine learning rate. Loss: L1 + MSE on pixels plus the
commitment of the normalised latent to its code. Patches weigh by their contrast, in the loss and in the
codebook: most of a scene is flat background, which would otherwise take most of the codes.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.models.vq import VQModel
from mulosd.scenes.render import render
from mulosd.scenes.world import sample_training_scene

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VQRecipe:
    """Steps and rates; batches are (image size, images), drawn with `shares`."""

    steps: int = 1900
    warm_steps: int = 300
    batches: tuple[tuple[int, int], ...] = ((32, 48), (64, 24), (128, 6))
    shares: tuple[float, ...] = (0.4, 0.45, 0.15)
    rate: float = 2e-3
    flat_weight: float = 0.15
    commitment: float = 0.25
    decay: float = 0.98
    seed: int = 0


def scene_batch(rng: np.random.Generator, count: int, size: int) -> Tensor:
    """`count` fresh training scenes as [count, 3, size, size] in [-1, 1]."""
    images = np.stack([render(sample_training_scene(rng), size) for _ in range(count)])
    return to_unit(torch.from_numpy(images))


def to_unit(images: Tensor) -> Tensor:
    """uint8 [B, height, width, 3] -> float [B, 3, height, width] in [-1, 1]."""
    return images.movedim(-1, 1).float().div(127.5).sub(1.0)


class EMACodebook:
    """Moving averages of the normalised latents of each code; starved codes restart at badly coded latents."""

    def __init__(self, model: VQModel, decay: float) -> None:
        self.weight = model.quantize.embedding.weight
        self.weight.requires_grad_(False)
        self.decay = decay
        self.counts = torch.ones(len(self.weight))
        self.sums = self.weight.detach().clone()

    @torch.no_grad()
    def start(self, latents: Tensor, iterations: int = 12) -> None:
        """Spherical k-means on [M, D] normalised latents."""
        codes = latents[torch.randperm(len(latents))[: len(self.weight)]].clone()
        for _ in range(iterations):
            owner = (latents @ codes.T).argmax(-1)
            sums = torch.zeros_like(codes).index_add_(0, owner, latents)
            empty = torch.bincount(owner, minlength=len(codes)) == 0
            sums[empty] = latents[torch.randint(len(latents), (int(empty.sum()),))]
            codes = F.normalize(sums, dim=-1)
        self.weight.copy_(codes)
        self.sums.copy_(codes)

    @torch.no_grad()
    def update(self, latents: Tensor, codes: Tensor, weight: Tensor) -> None:
        """One EMA step with [M, D] normalised latents, their code ids [M] and weights [M]."""
        batch_counts = torch.zeros_like(self.counts).index_add_(0, codes, weight)
        batch_sums = torch.zeros_like(self.sums).index_add_(0, codes, latents * weight[:, None])
        self.counts.mul_(self.decay).add_(batch_counts, alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(batch_sums, alpha=1 - self.decay)
        self.weight.copy_(F.normalize(self.sums, dim=-1))

    @torch.no_grad()
    def restart_starved(self, latents: Tensor, codes: Tensor, weight: Tensor, share: float = 0.05) -> int:
        """Move codes with less than `share` of the mean count to the worst coded latents; how many moved."""
        starved = (self.counts < share * self.counts.mean()).nonzero().flatten()
        error = weight * (1 - (latents * self.weight[codes]).sum(-1))
        worst = error.topk(min(4 * len(starved), len(error))).indices
        worst = worst[torch.randperm(len(worst))][: len(starved)]
        starved = starved[: len(worst)]
        mean = float(self.counts.mean())
        self.weight[starved] = latents[worst]
        self.sums[starved], self.counts[starved] = latents[worst] * mean, mean
        return len(starved)


def patch_weight(image: Tensor, stride: int, floor: float) -> Tensor:
    """Weight of each code cell [B, H, W]: `floor` where the patch is flat, up to 1 with contrast."""
    blocks = F.pixel_unshuffle(image, stride)
    patches = blocks.reshape(len(blocks), 3, -1, *blocks.shape[2:])
    return (patches.std(2).mean(1) * 5).clamp(floor, 1.0)


def train_vq(model: VQModel, recipe: VQRecipe) -> None:
    """Train in place; logs the pixel error per size every 50 steps."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng([77, recipe.seed])
    book = EMACodebook(model, recipe.decay)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=1e-4)
    latents: list[Tensor] = []
    for step in range(recipe.steps):
        size, batch = recipe.batches[rng.choice(len(recipe.batches), p=recipe.shares)]
        image = scene_batch(rng, batch, size)
        weight = patch_weight(image, model.config.stride, recipe.flat_weight)
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, step)
        z = F.normalize(model.latent(image), dim=1)
        flat, flat_weight = z.movedim(1, -1).reshape(-1, z.shape[1]), weight.flatten()
        if step < recipe.warm_steps:
            keep = torch.multinomial(flat_weight, 1500)
            latents = [*latents[-39:], flat.detach()[keep]]
            quantised, commitment = z, torch.zeros(())
        else:
            if step == recipe.warm_steps:
                book.start(torch.cat(latents))
            codes = (flat @ model.quantize.codebook().T).argmax(-1)
            chosen = model.quantize.lookup(codes.view(len(image), *z.shape[2:]))
            commitment = ((z - chosen).square().sum(1) * weight).mean()
            quantised = z + (chosen - z).detach()
            book.update(flat.detach(), codes, flat_weight)
            if step % 25 == 0 and step < 0.8 * recipe.steps:
                book.restart_starved(flat.detach(), codes, flat_weight)
        error = model.decode_latent(quantised) - image
        pixel_weight = weight.repeat_interleave(model.config.stride, 1).repeat_interleave(model.config.stride, 2)
        loss = ((error.abs() + error.square()).mean(1) * pixel_weight).mean() / pixel_weight.mean()
        loss = loss + recipe.commitment * commitment
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if step % 50 == 0:
            psnr = 10 * math.log10(4 / float(error.detach().square().mean()))
            log.info("vq step %d size %d loss %.4f psnr %.2f", step, size, float(loss.detach()), psnr)


def _rate(recipe: VQRecipe, step: int) -> float:
    warm = min(1.0, (step + 1) / 50)
    return recipe.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / recipe.steps)))
