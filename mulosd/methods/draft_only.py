"""The draft without verification; the decoder is `mulosd.decoding.draft_only`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mulosd.methods.cost import Forecast, Grids, Range, Sampling, num_fronts
from mulosd.methods.drafting import DraftKnobs


@dataclass(frozen=True, kw_only=True)
class DraftOnly(DraftKnobs):
    """The up-sampled draft of the low-resolution model, untouched: the control row of every table."""

    name: ClassVar[str] = "draft-only"
    decoder: ClassVar[str] = "mulosd.decoding.draft_only:decode_draft_only"

    def samplings(self, preset: Mapping[str, float]) -> list[Sampling]:
        """The drafter's: the target samples nothing."""
        return [self.draft_sampling(preset)]

    def forward_passes(self, grids: Grids) -> Forecast:
        """Those of ZipAR on the draft grid."""
        known = num_fronts(grids.draft_height, grids.draft_width, self.draft_window, at_top=True)
        return Forecast(draft=Range(known, known))
