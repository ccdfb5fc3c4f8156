"""How each up-sampler is built; `mulosd.methods.upsamplers` names the builders for those who must not load torch."""

from dataclasses import dataclass

from mulosd.decoding.job import Upsampler
from mulosd.families.card import Card
from mulosd.families.latent_card import find_latent
from mulosd.models.vq import VQModel
from mulosd.upsample import pixel
from mulosd.upsample.latent import load_latent
from mulosd.upsample.sr import load_network
from mulosd.upsample.token import Repeat


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an up-sampler is built from: the family's tokenizer and grids, and the knobs that concern it."""

    name: str
    vq: VQModel
    draft_grid: int
    ratio: int
    sr_model: str | None = None
    card: Card | None = None  # whose family's learned up-samplers are meant


def repeat(setting: Setting) -> Upsampler:
    """Each code repeated."""
    return Repeat(setting.ratio)


def nearest(setting: Setting) -> Upsampler:
    """Pixels repeated."""
    return pixel.PixelSpace(setting.vq, setting.draft_grid, setting.ratio, pixel.nearest(setting.ratio))


def bicubic(setting: Setting) -> Upsampler:
    """Bicubic in pixels."""
    return pixel.PixelSpace(setting.vq, setting.draft_grid, setting.ratio, pixel.bicubic(setting.ratio))


def lanczos(setting: Setting) -> Upsampler:
    """Lanczos in pixels."""
    return pixel.PixelSpace(setting.vq, setting.draft_grid, setting.ratio, pixel.lanczos(setting.ratio))


def network(setting: Setting) -> Upsampler:
    """A super-resolution network in pixels, from a file."""
    resize = load_network(setting.sr_model, setting.ratio)
    return pixel.PixelSpace(setting.vq, setting.draft_grid, setting.ratio, resize)


def latent(setting: Setting) -> Upsampler:
    """A learned network on codes, of the card's family."""
    assert setting.card is not None
    return load_latent(find_latent(setting.card, setting.name), setting.vq, setting.draft_grid)
