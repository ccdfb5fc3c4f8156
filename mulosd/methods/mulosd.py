"""Multi-Scale Local Speculative Decoding; the decoder is `mulosd.decoding.mulosd`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from mulosd.errors import ConfigError
from mulosd.methods.base import Idle, check_min
from mulosd.methods.draft_only import DraftOnly


@dataclass(frozen=True, kw_only=True)
class MuLoSD(DraftOnly):
    """Multi-Scale Local Speculative Decoding (arXiv 2601.05149; docs/mulosd.md).

    tau: a drafted token passes if the probability pooled over its pool_k nearest codes (itself
    included) is at least tau; any finite number (> 1 rejects all, <= 0 accepts all).
    resampled_fraction: in (0, 1) in place of tau: per image and cycle the largest tau that resamples at most this
    fraction of the drafted cells.
    pooling: probabilities after top-k and top-p, or before them.
    rejection: what follows a rejection. "expand": cells within Chebyshev distance `radius` of a rejected one, from the
    first one on, are drawn again; "local": rejected cells alone; "raster-resample": all from the first one on;
    "raster-redraft": the first one is drawn by the target and everything after it is drafted again.
    resample: "islands" (concurrent) or "serial" (raster order). island_window: ZipAR-like window inside an island.
    pending: drafts of cells still to be resampled are "masked" from the others or "visible" until overwritten.
    kv: the target's K/V of accepted cells after resampled ones (docs/mulosd.md "K/V after resampling"). "stale": as
    verified; "refresh": one forward per changed block when cycles follow; "carry": fed again with later forwards, at no
    extra forward (serial only). "auto": carry when serial, else refresh.
    draft_window: ZipAR window of the drafter (>= draft grid width is serial drafting).
    rows_per_cycle: draft-grid rows per cycle, or "all" for one cycle over the whole image.
    feedback: the drafter goes on from its own tokens ("none") or from the finished image scaled down ("downsample").
    """

    name: ClassVar[str] = "mulosd"

    tau: float = 0.1
    pool_k: int = 4
    radius: int = 1
    island_window: int = 4
    rows_per_cycle: int | Literal["all"] = "all"
    resample: Literal["islands", "serial"] = "islands"
    rejection: Literal["expand", "local", "raster-resample", "raster-redraft"] = "expand"
    pending: Literal["masked", "visible"] = "masked"
    kv: Literal["auto", "stale", "refresh", "carry"] = "auto"
    pooling: Literal["filtered", "unfiltered"] = "filtered"
    feedback: Literal["none", "downsample"] = "none"
    resampled_fraction: float | None = None

    def _check(self) -> None:
        super()._check()
        check_min(self, "pool_k", 1)
        check_min(self, "radius", 0)
        check_min(self, "island_window", 1)
        if isinstance(self.rows_per_cycle, str) and self.rows_per_cycle != "all":
            raise ConfigError(
                f"mulosd.rows_per_cycle = {self.rows_per_cycle!r} is not allowed; give a number of draft rows or 'all'."
            )
        if self.rows_per_cycle != "all":
            check_min(self, "rows_per_cycle", 1)
        if self.resampled_fraction is not None and not 0.0 < self.resampled_fraction < 1.0:
            raise ConfigError(
                f"mulosd.resampled_fraction = {self.resampled_fraction} is out of range; give a number "
                "between 0 and 1, both excluded (tau <= 0 resamples nothing, tau > 1 everything)."
            )

    @property
    def redrafts(self) -> bool:
        """What follows a rejection is drafted again, so that nothing but the rejected cell is resampled."""
        return self.rejection == "raster-redraft"

    @property
    def kv_policy(self) -> Literal["stale", "refresh", "carry"]:
        """`kv` with "auto" resolved."""
        if self.kv != "auto":
            return self.kv
        return "carry" if self.resample == "serial" or self.redrafts else "refresh"

    def idle(self) -> Iterator[Idle]:
        yield from super().idle()
        if self.rejection != "expand":
            yield Idle("radius", f"rejection {self.rejection!r}", "use rejection 'expand'")
        if self.redrafts:
            for knob in ("resample", "island_window", "pending", "kv", "resampled_fraction"):
                yield Idle(knob, "rejection 'raster-redraft'", "use another rejection")
        if self.resample == "serial":
            yield Idle("pending", "resample 'serial', where no query reaches a pending cell", "use 'islands'")
            yield Idle("island_window", "resample 'serial', where one cell runs after the other", "use 'islands'")
        elif self.kv == "carry":
            yield Idle("kv", "resample 'islands'", "use resample 'serial'")
        if self.rows_per_cycle == "all":
            if self.kv == "refresh" or (self.resample == "islands" and not self.redrafts):
                yield Idle("kv", "rows_per_cycle 'all', where no cycle follows", "use fewer rows")
            if not self.redrafts:
                yield Idle("feedback", "rows_per_cycle 'all', where no cycle follows", "use fewer rows")
        if self.resampled_fraction is not None:
            yield Idle("tau", "resampled_fraction, which chooses it", "leave resampled_fraction out")
