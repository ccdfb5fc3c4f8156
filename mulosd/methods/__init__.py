"""Decoding methods as light configuration: one frozen dataclass per method id, validated on construction."""

from mulosd.methods.ar import AR
from mulosd.methods.base import FILE_KNOBS, SAMPLER_KNOBS, Idle, SamplerKnobs, check_given, knobs_of
from mulosd.methods.draft_only import DRAFT_KNOBS, UPSAMPLERS, DraftOnly
from mulosd.methods.mulosd import MuLoSD
from mulosd.methods.registry import METHODS, build_method, configure
from mulosd.methods.zipar import ZipAR

__all__ = [
    "AR",
    "DRAFT_KNOBS",
    "FILE_KNOBS",
    "METHODS",
    "SAMPLER_KNOBS",
    "UPSAMPLERS",
    "DraftOnly",
    "Idle",
    "MuLoSD",
    "SamplerKnobs",
    "ZipAR",
    "build_method",
    "check_given",
    "configure",
    "knobs_of",
]
