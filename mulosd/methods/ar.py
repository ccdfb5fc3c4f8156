"""Plain autoregressive decoding; the decoder is `mulosd.decoding.ar`."""

from dataclasses import dataclass
from typing import ClassVar

from mulosd.methods.base import SamplerKnobs


@dataclass(frozen=True, kw_only=True)
class AR(SamplerKnobs):
    """Plain autoregressive decoding: N forwards for N tokens."""

    name: ClassVar[str] = "ar"
