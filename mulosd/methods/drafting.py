"""What methods with a draft on the low-resolution grid share: who drafts, sampled how, and what up-samples it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from mulosd.errors import ConfigError
from mulosd.families.card import Card
from mulosd.families.latent_card import find_latent
from mulosd.files.publish import canonical_json, sha256_hex
from mulosd.methods.base import SAMPLER_KNOBS, Idle, Needs, SamplerKnobs, Upsampling, check_top_p
from mulosd.methods.cost import SAMPLER_KEYS, Sampling, resolve_sampling
from mulosd.methods.knobs import Doc
from mulosd.methods.upsamplers import LEARNED, NETWORK, UPSAMPLERS


@dataclass(frozen=True, kw_only=True)
class DraftKnobs(SamplerKnobs):
    """Sampling of target and drafter, and the up-sampler between their grids."""

    needs: ClassVar[Needs] = Needs(drafter="required", upsampler=True)

    drafter: Annotated[
        Literal["checkpoint", "self"],
        Doc(
            "checkpoint: the family's model of the draft grid; self: the target's own weights on that grid, where one "
            "set of weights was trained on both"
        ),
    ] = "checkpoint"
    upsampler: Annotated[
        str, Doc("what turns codes of the draft grid into codes of the target grid", choices=lambda: UPSAMPLERS)
    ] = "bicubic"
    sr_model: Annotated[
        str | None,
        Doc("file of the network for upsampler sr; unset: the packaged one (docs/upsamplers.md)", is_file=True),
    ] = None
    draft_window: Annotated[
        int, Doc("ZipAR window of the drafter; the draft grid's width or more is serial drafting", low=1)
    ] = 4
    draft_guidance: Annotated[
        float | None, Doc("guidance scale of the drafter; unset: the card's", low=1, low_means="no guidance")
    ] = None
    draft_temperature: Annotated[float | None, Doc("temperature of the drafter; unset: the target's", low=0)] = None
    draft_top_k: Annotated[int | None, Doc("top_k of the drafter; unset: the target's", low=0, low_means="all")] = None
    draft_top_p: Annotated[float | None, Doc("top_p of the drafter; unset: the target's")] = None

    def check_fit(self, card: Card) -> None:
        """Refuse also a drafter or a learned up-sampler that the target does not have."""
        super().check_fit(card)
        if self.drafter not in card.drafters:
            lacking = {
                "self": f"the model of {card.target_id} was not trained on its draft grid too (multi_grid in its card)",
                "checkpoint": f"{card.target_id} has no other checkpoint to draft with",
            }
            raise ConfigError(
                f"{self.name}.drafter = {self.drafter!r} cannot run, as {lacking[self.drafter]}; "
                f"use drafter {card.drafters[0]!r}."
            )
        if self.upsampler in LEARNED:
            find_latent(card, self.upsampler)

    def draft_sampling(self, preset: Mapping[str, float]) -> Sampling:
        """The drafter's knobs, else the card's guidance for it and the target's other settings."""
        fallback = {**self.target_sampling(preset)._asdict(), "guidance": preset["draft_guidance"]}
        return resolve_sampling({key: getattr(self, f"draft_{key}") for key in SAMPLER_KEYS}, fallback)

    def samplings(self, preset: Mapping[str, float]) -> list[Sampling]:
        """Those of target and drafter."""
        return [*super().samplings(preset), self.draft_sampling(preset)]

    def drafted_by(self) -> str:
        """The knob `drafter`."""
        return self.drafter

    def upsampling(self) -> Upsampling:
        """The knobs `upsampler` and `sr_model`."""
        return Upsampling(self.upsampler, self.sr_model)

    def weights_hash(self, card: Card) -> str:
        """The target's, joined by that of a learned up-sampler."""
        if self.upsampler not in LEARNED:
            return super().weights_hash(card)
        return sha256_hex(canonical_json([card.content_hash, find_latent(card, self.upsampler).content_hash]))

    def idle(self) -> Iterator[Idle]:
        """The file of a network beside an up-sampler without one."""
        yield from super().idle()
        if self.upsampler != NETWORK:
            yield Idle("sr_model", f"upsampler {self.upsampler!r}", f"set upsampler to {NETWORK!r}")

    def _check(self) -> None:
        super()._check()
        check_top_p(self, "draft_top_p")


DRAFT_KNOBS = tuple(field.name for field in fields(DraftKnobs) if field.name not in SAMPLER_KNOBS)
