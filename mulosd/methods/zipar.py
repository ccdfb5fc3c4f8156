"""ZipAR; the decoder is `mulosd.decoding.zipar`."""

from dataclasses import dataclass
from typing import ClassVar

from mulosd.methods.base import SamplerKnobs, check_min


@dataclass(frozen=True, kw_only=True)
class ZipAR(SamplerKnobs):
    """ZipAR: a cell runs once `window` cells of the row above, from its own column on, are done.

    Forwards 2W + (H - 2) * window for window <= W (docs/mulosd.md "Forward passes"); window >= W is AR.
    """

    name: ClassVar[str] = "zipar"

    window: int = 4

    def _check(self) -> None:
        super()._check()
        check_min(self, "window", 1)
