"""ZipAR; the decoder is `mulosd.decoding.zipar`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mulosd.methods.base import SamplerKnobs
from mulosd.methods.cost import Forecast, Grids, Range, num_fronts
from mulosd.methods.knobs import Doc


@dataclass(frozen=True, kw_only=True)
class ZipAR(SamplerKnobs):
    """ZipAR (arXiv 2412.04062): rows are sampled in a staggered front; a window of the grid's width is AR."""

    name: ClassVar[str] = "zipar"
    decoder: ClassVar[str] = "mulosd.decoding.zipar:decode_zipar"

    window: Annotated[
        int, Doc("a cell runs once so many cells of the row above, from its own column on, are decided", low=1)
    ] = 4

    def forward_passes(self, grids: Grids) -> Forecast:
        """2W + (H - 2) * window for window <= W (docs/mulosd.md "Forward passes")."""
        known = num_fronts(grids.height, grids.width, self.window, at_top=True)
        return Forecast(resample=Range(known, known))
