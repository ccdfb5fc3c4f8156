"""Up-samplers: codes of the draft grid -> codes of the target grid, one signature for all.

`upsample(low [B, b, w], start) -> [B, (b - start) * ratio, w * ratio]`: `low` holds the draft rows
0 .. b-1 known so far, the result the target rows of draft rows start .. b-1. Row-causal: nothing
below row b-1 is used, because nothing below is given.
"""

from collections.abc import Callable

from torch import Tensor

from mulosd.errors import unknown_name
from mulosd.methods import UPSAMPLERS
from mulosd.models.vq import VQModel
from mulosd.upsample.pixel import Bicubic
from mulosd.upsample.token import Repeat

Upsampler = Callable[[Tensor, int], Tensor]


def build_upsampler(name: str, *, vq: VQModel, draft_grid: int, ratio: int) -> Upsampler:
    """The up-sampler called `name` for a family's tokenizer and grids."""
    if name == "repeat":
        return Repeat(ratio)
    if name == "bicubic":
        return Bicubic(vq, draft_grid, ratio)
    raise unknown_name("up-sampler", name, UPSAMPLERS)
