"""The names of the up-samplers and where each is built (`mulosd.upsample.builders`). Light: nothing is built here."""

from typing import Any

from mulosd.families.latent_card import PREFIX
from mulosd.registry import Registry

NETWORK = "sr"  # the up-sampler whose network the knob `sr_model` names
LEARNED = tuple(f"{PREFIX}{loss}" for loss in ("ce", "pixel", "gan"))  # those whose weights belong to a family


def _problem(name: str, found: Any) -> str | None:
    return None if callable(found) else "it cannot be called; an up-sampler's entry is `build(setting)`"


# An entry `build(setting: mulosd.upsample.builders.Setting)` returns the up-sampler.
UPSAMPLERS: Registry[Any] = Registry(
    "up-sampler",
    "mulosd.upsamplers",
    {
        "repeat": "mulosd.upsample.builders:repeat",
        "nearest": "mulosd.upsample.builders:nearest",
        "bicubic": "mulosd.upsample.builders:bicubic",
        "lanczos": "mulosd.upsample.builders:lanczos",
        NETWORK: "mulosd.upsample.builders:network",
        **dict.fromkeys(LEARNED, "mulosd.upsample.builders:latent"),
    },
    _problem,
)
