"""Up-samplers: codes of the draft grid -> codes of the target grid, one signature for all (docs/upsamplers.md).

`upsample(low [B, b, w], start) -> [B, (b - start) * ratio, w * ratio]`: `low` holds the draft rows
0 .. b-1 known so far, the result the target rows of draft rows start .. b-1. Row-causal: nothing
below row b-1 is used, because nothing below is given. An image whose numbers are not finite has codes -1.
"""

from typing import Any

from mulosd.decoding.job import Upsampler
from mulosd.errors import unknown_name
from mulosd.methods.upsamplers import UPSAMPLERS
from mulosd.upsample.builders import Setting


def build_upsampler(name: str, **setting: Any) -> Upsampler:
    """The up-sampler called `name`; keywords are the fields of `Setting`."""
    if name not in UPSAMPLERS:
        raise unknown_name("up-sampler", name, UPSAMPLERS)
    built: Upsampler = UPSAMPLERS[name](Setting(name=name, **setting))
    return built
