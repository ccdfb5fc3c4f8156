"""Kernels of the pixel-space up-samplers: Pillow's Lanczos to the bit of its precision, range, dtypes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from mulosd.upsample.pixel import Enlarge, bicubic, lanczos, nearest

PIXELS = torch.rand(2, 3, 12, 9, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize("kernel", [nearest, bicubic, lanczos])
@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sizes_and_dtypes(kernel: Callable[[int], Enlarge], ratio: int, dtype: torch.dtype) -> None:
    large = kernel(ratio)(PIXELS.to(dtype))
    assert large.shape == (2, 3, 12 * ratio, 9 * ratio)
    assert large.dtype == dtype
    flat = kernel(ratio)(torch.full((1, 3, 6, 6), 0.25, dtype=dtype))
    assert (flat - 0.25).abs().max() < (0.01 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("ratio", [2, 4])
def test_lanczos_is_pillows(ratio: int) -> None:
    large = lanczos(ratio)(PIXELS)
    for b, channel in np.ndindex(2, 3):
        picture = Image.fromarray(PIXELS[b, channel].numpy())
        expected = np.asarray(picture.resize((9 * ratio, 12 * ratio), Image.Resampling.LANCZOS))
        assert np.abs(large[b, channel].numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("ratio", [2, 4])
def test_lanczos_is_torchs_own(ratio: int) -> None:
    """Two libraries, one kernel. torch's is new, needs the CPU and float32 or wider, so it is not what runs."""
    try:
        expected = torch.nn.functional.interpolate(PIXELS, scale_factor=ratio, mode="lanczos", antialias=True)
    except (NotImplementedError, ValueError):
        pytest.skip("this torch has no Lanczos kernel")
    assert (lanczos(ratio)(PIXELS) - expected).abs().max() < 1e-5
    assert (bicubic(ratio)(PIXELS) - expected).abs().max() > 1e-2


def test_kernels_differ() -> None:
    large = [kernel(2)(PIXELS) for kernel in (nearest, bicubic, lanczos)]
    assert torch.equal(large[0][:, :, ::2, ::2], PIXELS)
    for i in range(3):
        assert (large[i] - large[i - 1]).abs().max() > 1e-2
    assert large[2].abs().max() > 1  # overshoots the range, which `PixelSpace` therefore clamps
