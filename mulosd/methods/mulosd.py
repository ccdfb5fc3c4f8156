"""Multi-Scale Local Speculative Decoding; the decoder is `mulosd.decoding.mulosd`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from mulosd.errors import ConfigError
from mulosd.families.card import Card
from mulosd.methods.base import Idle, Needs
from mulosd.methods.cost import Forecast, Grids, Range, num_fronts
from mulosd.methods.drafting import DraftKnobs
from mulosd.methods.knobs import Doc


@dataclass(frozen=True, kw_only=True)
class MuLoSD(DraftKnobs):
    """Multi-Scale Local Speculative Decoding (arXiv 2601.05149; docs/mulosd.md)."""

    name: ClassVar[str] = "mulosd"
    needs: ClassVar[Needs] = Needs(drafter="required", upsampler=True, neighbours=True)
    decoder: ClassVar[str] = "mulosd.decoding.mulosd:decode_mulosd"

    tau: Annotated[
        float,
        Doc("a drafted token passes if its pooled probability is at least tau; > 1 rejects all, <= 0 accepts all"),
    ] = 0.1
    pool_k: Annotated[
        int, Doc("codes over which the probability is pooled: the drafted one and its nearest", low=1)
    ] = 4
    radius: Annotated[int, Doc("Chebyshev distance by which rejections spread (rejection expand)", low=0)] = 1
    island_window: Annotated[int, Doc("ZipAR-like window inside an island", low=1)] = 4
    rows_per_cycle: Annotated[
        int | Literal["all"], Doc("rows of the draft grid per cycle; all: one cycle over the whole image", low=1)
    ] = "all"
    resample: Annotated[
        Literal["islands", "serial"], Doc("order of resampling: islands concurrently, or all cells in raster order")
    ] = "islands"
    rejection: Annotated[
        Literal["expand", "local", "raster-resample", "raster-redraft"],
        Doc(
            "what follows a rejection. expand: cells within radius of a rejected one, from the first one on, are "
            "sampled again; local: only rejected cells; raster-resample: all cells from the first one on; "
            "raster-redraft: the target samples the first one and everything after it is drafted again"
        ),
    ] = "expand"
    pending: Annotated[
        Literal["masked", "visible"],
        Doc("drafts of cells still to be resampled are masked from the others, or visible until overwritten"),
    ] = "masked"
    kv: Annotated[
        Literal["auto", "stale", "refresh", "carry"],
        Doc(
            'K/V of accepted cells after resampled ones (docs/mulosd.md "K/V after resampling"). stale: as verified; '
            "refresh: one forward pass per changed block when cycles follow; carry: fed again with later "
            "passes, at no extra pass (serial only); auto: carry when serial, else refresh"
        ),
    ] = "auto"
    pooling: Annotated[
        Literal["filtered", "unfiltered"], Doc("pool probabilities after top_k and top_p, or before them")
    ] = "filtered"
    feedback: Annotated[
        Literal["none", "downsample"],
        Doc("the drafter goes on from its own tokens, or from the finished image scaled down"),
    ] = "none"
    resampled_fraction: Annotated[
        float | None,
        Doc(
            "in (0, 1), in place of tau: per image and cycle the largest tau that resamples at most this fraction of "
            "the drafted cells"
        ),
    ] = None

    def _check(self) -> None:
        super()._check()
        if isinstance(self.rows_per_cycle, str) and self.rows_per_cycle != "all":
            raise ConfigError(
                f"mulosd.rows_per_cycle = {self.rows_per_cycle!r} is not allowed; give a number of draft rows or 'all'."
            )
        if self.resampled_fraction is not None and not 0.0 < self.resampled_fraction < 1.0:
            raise ConfigError(
                f"mulosd.resampled_fraction = {self.resampled_fraction} is out of range; give a number "
                "between 0 and 1, both excluded (tau <= 0 resamples nothing, tau > 1 everything)."
            )

    def check_fit(self, card: Card) -> None:
        """Refuse also a knob that is beyond the target's codes or grids, or that changes nothing on it."""
        super().check_fit(card)
        if self.pool_k > card.codebook_size:
            raise ConfigError(
                f"mulosd.pool_k = {self.pool_k} exceeds the {card.codebook_size} codes of {card.target_id}; "
                f"choose from 1 to {card.codebook_size}."
            )
        if self.radius > card.grid:
            raise ConfigError(
                f"mulosd.radius = {self.radius} exceeds the {card.grid} x {card.grid} grid of {card.target_id}; "
                f"choose from 0 to {card.grid}."
            )
        if card.draft_grid and self.rows_per_cycle != "all" and self.rows_per_cycle >= card.draft_grid:
            raise ConfigError(
                f"mulosd.rows_per_cycle = {self.rows_per_cycle} covers all {card.draft_grid} draft rows of "
                f"{card.target_id}; choose from 1 to {card.draft_grid - 1}, or all."
            )
        if self.pooling == "unfiltered" and not self.target_sampling(card.sampler).filters:
            raise ConfigError(
                f"mulosd.pooling = 'unfiltered' does nothing on {card.target_id}, which samples without top_k and "
                "top_p; leave it out, or set one of them."
            )

    def downsamples(self) -> bool:
        """With feedback from the finished image."""
        return self.feedback == "downsample"

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
        """Knobs that the chosen rejection, order and cycles leave without effect."""
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

    def resolved(self) -> dict[str, Any]:
        """`kv` with "auto" resolved, and where tau comes from."""
        knobs = super().resolved()
        if knobs["kv"] != "not used":
            knobs["kv"] = self.kv_policy if self.kv != "auto" else f"{self.kv_policy} (auto)"
        if self.resampled_fraction is not None:
            knobs["tau"] = "per image and cycle, by resampled_fraction"
        return knobs

    def forward_passes(self, grids: Grids) -> Forecast:
        """Ranges, as they depend on what the target rejects."""
        return self._redrafting(grids) if self.redrafts else self._resampling(grids)

    def explain_forwards(self, grids: Grids) -> list[str]:
        """The passes of islands where everything is rejected."""
        if self.resample != "islands" or self.redrafts:
            return []
        whole = self.one_island_fronts(grids)
        return [f"(resample: {whole} if everything is rejected; the bound is one cell at a time)"]

    def one_island_fronts(self, grids: Grids) -> int:
        """Resample passes where every drafted cell is rejected and each block is one island."""
        fronts = (
            num_fronts((stop - start) * grids.ratio, grids.width, self.island_window, at_top=False)
            for start, stop in self._cycles(grids)
        )
        return sum(fronts) - 1  # cell 0 is sampled from the prefix's own logits

    def _cycles(self, grids: Grids) -> Iterator[tuple[int, int]]:
        """Draft rows [start, stop) of each cycle where nothing is drafted twice."""
        rows = grids.draft_height if self.rows_per_cycle == "all" else self.rows_per_cycle
        for start in range(0, grids.draft_height, rows):
            yield start, min(start + rows, grids.draft_height)

    def _draft_passes(self, grids: Grids, start: int, stop: int) -> int:
        return num_fronts(stop - start, grids.draft_width, self.draft_window, at_top=start == 0)

    def _resampling(self, grids: Grids) -> Forecast:
        """Every draft row once. A resampled cell costs a pass at most; serially the first of a cycle costs none."""
        blocks = list(self._cycles(grids))
        cycles, feedbacks = len(blocks), (len(blocks) - 1) * self.downsamples()
        draft = sum(self._draft_passes(grids, start, stop) for start, stop in blocks) + feedbacks
        fraction = 1.0 if self.resampled_fraction is None else self.resampled_fraction
        cells = [math.floor(fraction * (stop - start) * grids.ratio * grids.width) for start, stop in blocks]
        free = 1 if self.resample == "serial" else 0
        refreshes = cycles - 1 if self.kv_policy == "refresh" else 0
        return Forecast(
            draft=Range(draft, draft),
            verify=Range(cycles, cycles),
            resample=Range(0, sum(max(0, size - free) for size in cells)),
            refresh=Range(0, refreshes),
            cycles=Range(cycles, cycles),
        )

    def _redrafting(self, grids: Grids) -> Forecast:
        """From no rejection to one at the first cell of every cycle, which then settles only that cell.

        A cycle costs what drafting from the row of its first cell costs; cell 0 drafted again takes no pass of its own.
        """
        blocks, rows = list(self._cycles(grids)), range(grids.draft_height)
        cells = grids.num_tokens // grids.draft_height  # target cells that a draft row covers
        low = sum(self._draft_passes(grids, start, stop) for start, stop in blocks)
        size = blocks[0][1]
        high = cells * sum(self._draft_passes(grids, row, min(row + size, len(rows))) for row in rows)
        cycles, draft = Range(len(blocks), grids.num_tokens), Range(low, high - (cells - 1))
        if self.downsamples():
            draft += Range(len(blocks) - 1, len(rows) - 1)
        return Forecast(draft=draft, verify=cycles, cycles=cycles)
