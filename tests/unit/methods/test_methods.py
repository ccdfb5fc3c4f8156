"""Knobs of the methods: introduction defaults stay out of keys, nonsense is one sentence."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

from mulosd.decoding.registry import decoder_of
from mulosd.errors import ConfigError, EnvironmentProblem
from mulosd.methods import (
    AR,
    METHODS,
    Doc,
    DraftOnly,
    MuLoSD,
    Needs,
    SamplerKnobs,
    ZipAR,
    all_knobs,
    build_method,
    check_given,
    configure,
    declared_knobs,
    knobs_of,
)
from mulosd.methods.knobs import has_default
from mulosd.registry import load_object
from tests.fakes import FakeCard


@pytest.mark.parametrize("name", METHODS)
def test_defaults_leave_keys_alone(name: str) -> None:
    assert knobs_of(METHODS[name]()) == {}


def test_what_was_the_behaviour_is_the_default() -> None:
    """A key that an earlier version wrote names the same images today."""
    method = MuLoSD()
    assert (method.rejection, method.pending, method.kv, method.pooling, method.feedback) == (
        "expand",
        "masked",
        "auto",
        "filtered",
        "none",
    )
    assert method.resampled_fraction is None
    assert {method.draft_temperature, method.draft_top_k, method.draft_top_p} == {None}
    assert knobs_of(MuLoSD(pool_k=2, radius=2)) == {"pool_k": 2, "radius": 2}


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mulosd", {"rejection": "raster"}, "unknown mulosd.rejection 'raster'; allowed: expand, local, raster-redraft"),
    ("mulosd", {"kv": "b"}, "unknown mulosd.kv"),
    ("mulosd", {"pending": "hidden"}, "unknown mulosd.pending"),
    ("mulosd", {"pooling": "raw"}, "unknown mulosd.pooling"),
    ("mulosd", {"feedback": "up"}, "unknown mulosd.feedback"),
    ("mulosd", {"radius": -1}, "mulosd.radius = -1 is too small"),
    ("mulosd", {"island_window": 0}, "mulosd.island_window = 0 is too small; the smallest allowed value is 1"),
    ("mulosd", {"draft_window": 0}, "mulosd.draft_window = 0 is too small"),
    ("zipar", {"window": 0}, "zipar.window = 0 is too small"),
    ("mulosd", {"rows_per_cycle": 0}, "mulosd.rows_per_cycle = 0 is too small"),
    ("mulosd", {"rows_per_cycle": "half"}, "mulosd.rows_per_cycle = 'half' is not allowed; give a number"),
    ("draft-only", {"drafter": "none"}, "unknown draft-only.drafter 'none'; allowed: checkpoint, self."),
    ("mulosd", {"pool_k": 0}, "mulosd.pool_k = 0 is too small"),
    ("mulosd", {"resampled_fraction": 0.0}, "mulosd.resampled_fraction = 0.0 is out of range"),
    ("mulosd", {"resampled_fraction": 1}, "mulosd.resampled_fraction = 1.0 is out of range"),
    ("mulosd", {"resampled_fraction": "nan"}, "is not finite"),
    ("draft-only", {"draft_top_p": 0.0}, "draft-only.draft_top_p = 0.0 is out of range"),
    ("draft-only", {"draft_top_k": -1}, "draft-only.draft_top_k = -1 is too small"),
    ("draft-only", {"draft_temperature": -1}, "draft-only.draft_temperature = -1.0 is too small"),
    ("ar", {"top_p": 1.5}, "ar.top_p = 1.5 is out of range"),
    ("ar", {"guidance": 0}, "ar.guidance = 0.0 is too small; the smallest allowed value is 1 (no guidance)."),
    ("zipar", {"guidance": 0.5}, "zipar.guidance = 0.5 is too small"),
    ("mulosd", {"draft_guidance": 0.999}, "mulosd.draft_guidance = 0.999 is too small"),
    (
        "ar",
        {"cfg_interval": -2},
        "ar.cfg_interval = -2 is too small; the smallest allowed value is -1 (guidance",
    ),
    ("ar", {"cfg_interval": 3, "guidance": 1}, "ar.cfg_interval = 3 does nothing with guidance 1, which is none"),
    ("ar", {"logits_dtype": "bfloat16"}, "unknown ar.logits_dtype 'bfloat16'; allowed: float32, model"),
]
UNUSED: list[tuple[dict[str, Any], str]] = [
    ({"rejection": "local", "radius": 0}, "radius = 0 does nothing with rejection 'local'"),
    ({"rejection": "raster-resample", "radius": 2}, "radius = 2 does nothing with rejection 'raster-resample'"),
    ({"rejection": "raster-redraft", "resample": "serial"}, "resample = 'serial' does nothing with rejection"),
    ({"rejection": "raster-redraft", "island_window": 2}, "island_window = 2 does nothing"),
    ({"rejection": "raster-redraft", "pending": "visible"}, "pending = 'visible' does nothing"),
    ({"rejection": "raster-redraft", "kv": "carry"}, "kv = 'carry' does nothing"),
    ({"rejection": "raster-redraft", "resampled_fraction": 0.5}, "resampled_fraction = 0.5 does nothing"),
    ({"resample": "serial", "pending": "visible"}, "pending = 'visible' does nothing with resample 'serial'"),
    ({"kv": "carry"}, "kv = 'carry' does nothing with resample 'islands'"),
    ({"resample": "serial", "island_window": 2}, "island_window = 2 does nothing with resample 'serial'"),
    ({"kv": "refresh"}, "kv = 'refresh' does nothing with rows_per_cycle 'all'"),
    ({"kv": "stale"}, "kv = 'stale' does nothing with rows_per_cycle 'all'"),
    ({"kv": "refresh", "resample": "serial"}, "kv = 'refresh' does nothing with rows_per_cycle 'all'"),
    ({"feedback": "downsample"}, "feedback = 'downsample' does nothing with rows_per_cycle 'all'"),
    ({"resampled_fraction": 0.5, "tau": 0.2}, "tau = 0.2 does nothing with resampled_fraction"),
    # At its default a knob is seen where it is given.
    ({"rejection": "local", "radius": 1}, "radius = 1 does nothing with rejection 'local'"),
    ({"rejection": "raster-redraft", "resample": "islands"}, "resample = 'islands' does nothing with rejection"),
    ({"resampled_fraction": 0.5, "tau": 0.1}, "tau = 0.1 does nothing with resampled_fraction"),
    ({"resampled_fraction": 0.5, "tau": -1}, "tau = -1.0 does nothing with resampled_fraction"),
    ({"resample": "serial", "island_window": 4}, "island_window = 4 does nothing with resample 'serial'"),
    ({"resample": "serial", "pending": "masked"}, "pending = 'masked' does nothing with resample 'serial'"),
]


@pytest.mark.parametrize(("name", "knobs", "text"), BAD, ids=[str(knobs) for _, knobs, _ in BAD])
def test_bad_values(name: str, knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_method(name, knobs)
    assert text in str(caught.value)


@pytest.mark.parametrize(("knobs", "text"), UNUSED, ids=[str(knobs) for knobs, _ in UNUSED])
def test_knobs_that_would_do_nothing(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_method("mulosd", knobs)
    assert f"mulosd.{text}" in str(caught.value)
    assert "leave it out, or " in str(caught.value)


@pytest.mark.parametrize(
    "knobs",
    [
        {"rejection": "local"},
        {"rejection": "raster-redraft", "feedback": "downsample"},
        {"resample": "serial", "kv": "carry"},
        {"resample": "serial", "kv": "stale"},
        {"resample": "serial", "kv": "refresh", "rows_per_cycle": 2},
        {"kv": "refresh", "rows_per_cycle": 2},
        {"kv": "stale", "rows_per_cycle": 2, "pending": "visible"},
        {"resampled_fraction": 0.2, "rejection": "raster-resample"},
        {"resample": "serial", "cfg_interval": 5},
    ],
    ids=str,
)
def test_combinations_that_make_sense(knobs: dict[str, Any]) -> None:
    assert knobs_of(build_method("mulosd", knobs)) == knobs


@pytest.mark.parametrize(
    "knobs",
    [
        {"rejection": "raster-redraft", "kv": "auto", "resampled_fraction": None},
        {"rows_per_cycle": "all", "feedback": "none", "sr_model": None},
        {"guidance": 1.0, "cfg_interval": -1},
    ],
    ids=str,
)
def test_values_that_ask_for_nothing_may_stand_anywhere(knobs: dict[str, Any]) -> None:
    build_method("mulosd", knobs)


def test_configurations_that_stand_together_share_their_knobs() -> None:
    """A knob of a grid counts where any configuration uses it; one that none uses is refused."""
    settings = [{"radius": 1, "rejection": rejection} for rejection in ("expand", "local")]
    built = [(configure("mulosd", knobs), knobs) for knobs in settings]
    check_given(built)
    with pytest.raises(ConfigError, match="radius = 1 does nothing with rejection 'local'"):
        check_given(built[1:])


def test_auto_is_resolved_by_the_schedule() -> None:
    assert MuLoSD().kv_policy == "refresh"
    assert MuLoSD(resample="serial").kv_policy == "carry"
    assert MuLoSD(rejection="raster-redraft").kv_policy == "carry"
    assert MuLoSD(kv="stale", rows_per_cycle=1).kv_policy == "stale"


def test_methods_are_values() -> None:
    assert {AR(), ZipAR(), DraftOnly(), MuLoSD(), MuLoSD(tau=0.1)} == {AR(), ZipAR(), DraftOnly(), MuLoSD()}


@pytest.mark.parametrize("name", METHODS)
def test_a_configuration_says_what_its_decoder_needs_and_what_its_knobs_mean(name: str) -> None:
    cls = METHODS[name]
    method = cls()
    assert cls.name == name
    assert (method.needs.drafter == "required") == (method.drafted_by() is not None)
    assert method.needs.upsampler == (method.upsampling() is not None)
    assert all(knob.doc.text and has_default(knob) for knob in declared_knobs(cls).values())
    assert callable(load_object(cls.decoder))


def test_what_no_target_offers_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Head(SamplerKnobs):
        name: ClassVar[str] = "headed"
        needs: ClassVar[Needs] = Needs(drafter="head", features=True)

    with pytest.raises(ConfigError, match="method 'headed' needs a draft head, the target's features, which no target"):
        Head().check_fit(FakeCard("fake"))


def test_a_decoder_that_is_not_there_is_a_sentence() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Lost(SamplerKnobs):
        name: ClassVar[str] = "lost"
        decoder: ClassVar[str] = "mulosd.decoding.ar:no_such"

    with pytest.raises(EnvironmentProblem, match=r"the decoder 'mulosd.decoding.ar:no_such' of method 'lost' cannot"):
        decoder_of(Lost)


def test_stored_knobs_are_completed_where_the_method_is_here() -> None:
    assert all_knobs("zipar", {"window": 7})["window"] == 7
    assert all_knobs("zipar", {})["window"] == 4
    assert all_knobs("not-here", {"a": 1}) == {"a": 1}


def problem(**changes: Any) -> str | None:
    """What the registry says of a class from outside, made from a good one."""

    @dataclass(frozen=True, kw_only=True)
    class Own(SamplerKnobs):
        name: ClassVar[str] = "own"
        decoder: ClassVar[str] = "own_package:decode"
        steps: Annotated[int, Doc("steps", low=1)] = 2

    for key, value in changes.items():
        setattr(Own, key, value)
    return METHODS._problem("own", Own)


def test_a_method_from_outside_is_looked_over() -> None:
    assert problem() is None
    assert "its name is 'ar'" in str(problem(name="ar"))
    assert "'decode' does not have the form 'module:function'" in str(problem(decoder="decode"))
    assert METHODS._problem("own", dict) == "it is not a subclass of mulosd.methods.SamplerKnobs"

    class Plain(SamplerKnobs):
        name = "own"

    @dataclass(frozen=True, kw_only=True)
    class NoDefault(SamplerKnobs):
        name: ClassVar[str] = "own"
        decoder: ClassVar[str] = "own_package:decode"
        steps: Annotated[int, Doc("steps")]

    @dataclass(frozen=True, kw_only=True)
    class NoMeaning(SamplerKnobs):
        name: ClassVar[str] = "own"
        decoder: ClassVar[str] = "own_package:decode"
        steps: int = 2

    assert "it is not a dataclass(frozen=True" in str(METHODS._problem("own", Plain))
    assert "its knob 'steps' has no default" in str(METHODS._problem("own", NoDefault))
    assert "its knob 'steps' has no meaning" in str(METHODS._problem("own", NoMeaning))
