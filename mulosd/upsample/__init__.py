"""Up-samplers: codes of the draft grid -> codes of the target grid, one signature for all (docs/upsamplers.md).

`upsample(low [B, b, w], start) -> [B, (b - start) * ratio, w * ratio]`: `low` holds the draft rows
0 .. b-1 known so far, the result the target rows of draft rows start .. b-1. Row-causal: nothing
below row b-1 is used, because nothing below is given. An image whose numbers are not finite has codes -1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mulosd.decoding.job import Upsampler
from mulosd.errors import unknown_name
from mulosd.families.card import Card
from mulosd.families.latent_card import find_latent
from mulosd.models.vq import VQModel
from mulosd.upsample.latent import load_latent
from mulosd.upsample.pixel import PixelSpace, bicubic, lanczos, nearest
from mulosd.upsample.sr import load_network
from mulosd.upsample.token import Repeat


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an up-sampler is built from: the family's tokenizer and grids, and the knobs that concern it."""

    vq: VQModel
    draft_grid: int
    ratio: int
    sr_model: str | None = None
    card: Card | None = None  # whose family's learned up-samplers are meant


def _latent(name: str) -> Callable[[Setting], Upsampler]:
    def build(setting: Setting) -> Upsampler:
        assert setting.card is not None
        return load_latent(find_latent(setting.card, name), setting.vq, setting.draft_grid)

    return build


# Name -> builder; `mulosd.methods.UPSAMPLERS` lists the names for those who must not load torch.
BUILDERS: dict[str, Callable[[Setting], Upsampler]] = {
    "repeat": lambda s: Repeat(s.ratio),
    "nearest": lambda s: PixelSpace(s.vq, s.draft_grid, s.ratio, nearest(s.ratio)),
    "bicubic": lambda s: PixelSpace(s.vq, s.draft_grid, s.ratio, bicubic(s.ratio)),
    "lanczos": lambda s: PixelSpace(s.vq, s.draft_grid, s.ratio, lanczos(s.ratio)),
    "sr": lambda s: PixelSpace(s.vq, s.draft_grid, s.ratio, load_network(s.sr_model, s.ratio)),
    **{name: _latent(name) for name in ("latent-ce", "latent-pixel", "latent-gan")},
}


def build_upsampler(name: str, **setting: Any) -> Upsampler:
    """The up-sampler called `name`; keywords are the fields of `Setting`."""
    if name not in BUILDERS:
        raise unknown_name("up-sampler", name, BUILDERS)
    return BUILDERS[name](Setting(**setting))
