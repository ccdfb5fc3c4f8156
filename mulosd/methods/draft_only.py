"""The draft without verification; the decoder is `mulosd.decoding.draft_only`."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from mulosd.methods.base import SAMPLER_KNOBS, Idle, SamplerKnobs, check_choice, check_min, check_top_p

UPSAMPLERS = ("repeat", "nearest", "bicubic", "lanczos", "sr", "latent-ce", "latent-pixel", "latent-gan")


@dataclass(frozen=True, kw_only=True)
class DraftOnly(SamplerKnobs):
    """The up-sampled draft of the low-resolution model, untouched: the control row of every table.

    drafter: the family's "checkpoint" of the draft grid, or "self": the target's own weights on that grid, where one
    set of weights was trained on both (self-drafting). upsampler: one of UPSAMPLERS. sr_model: file of a
    super-resolution network for upsampler "sr"; None is the packaged one (`mulosd.upsample.sr`).
    """

    name: ClassVar[str] = "draft-only"

    drafter: Literal["checkpoint", "self"] = "checkpoint"
    upsampler: str = "bicubic"
    sr_model: str | None = None
    draft_window: int = 4
    draft_guidance: float | None = None
    draft_temperature: float | None = None
    draft_top_k: int | None = None
    draft_top_p: float | None = None

    def idle(self) -> Iterator[Idle]:
        yield from super().idle()
        if self.upsampler != "sr":
            yield Idle("sr_model", f"upsampler {self.upsampler!r}", "set upsampler to 'sr'")

    def _check(self) -> None:
        super()._check()
        check_choice(self, "upsampler", UPSAMPLERS)
        check_min(self, "draft_window", 1)
        check_min(self, "draft_temperature", 0.0)
        check_min(self, "draft_top_k", 0)
        check_top_p(self, "draft_top_p")


DRAFT_KNOBS = tuple(field.name for field in fields(DraftOnly) if field.name not in SAMPLER_KNOBS)
