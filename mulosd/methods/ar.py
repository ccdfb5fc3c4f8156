"""Plain autoregressive decoding; the decoder is `mulosd.decoding.ar`."""

from dataclasses import dataclass
from typing import ClassVar

from mulosd.methods.base import SamplerKnobs
from mulosd.methods.cost import Forecast, Grids, Range


@dataclass(frozen=True, kw_only=True)
class AR(SamplerKnobs):
    """Plain autoregressive decoding: N forward passes for N tokens."""

    name: ClassVar[str] = "ar"
    decoder: ClassVar[str] = "mulosd.decoding.ar:decode_ar"

    def forward_passes(self, grids: Grids) -> Forecast:
        """One a token."""
        return Forecast(resample=Range(grids.num_tokens, grids.num_tokens))
