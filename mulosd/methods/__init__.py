"""Decoding methods as light configuration: one frozen dataclass per method id, validated on construction."""

from mulosd.methods.ar import AR
from mulosd.methods.base import SAMPLER_KNOBS, Idle, Needs, SamplerKnobs, check_given, file_knobs, knobs_of
from mulosd.methods.draft_only import DraftOnly
from mulosd.methods.drafting import DRAFT_KNOBS, DraftKnobs
from mulosd.methods.knobs import Doc, declared_knobs
from mulosd.methods.mulosd import MuLoSD
from mulosd.methods.registry import METHODS, all_knobs, build_method, configure
from mulosd.methods.upsamplers import UPSAMPLERS
from mulosd.methods.zipar import ZipAR

__all__ = [
    "AR",
    "DRAFT_KNOBS",
    "METHODS",
    "SAMPLER_KNOBS",
    "UPSAMPLERS",
    "Doc",
    "DraftKnobs",
    "DraftOnly",
    "Idle",
    "MuLoSD",
    "Needs",
    "SamplerKnobs",
    "ZipAR",
    "all_knobs",
    "build_method",
    "check_given",
    "configure",
    "declared_knobs",
    "file_knobs",
    "knobs_of",
]
