"""The forecast against what decoders count: exact where nothing or everything is rejected, a bound in between."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError
from mulosd.families.card import Card
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.methods.cost import Grids, Range, num_fronts
from mulosd.types import DecodeStats
from tests.unit.decoding import toys

GRIDS = Grids(8, 8, 4, 4)
KINDS = ("draft", "verify", "resample", "refresh")
PRESET = {"guidance": 3.0, "temperature": 0.9, "top_k": 100, "top_p": 0.95, "draft_guidance": 2.0}
KNOBS: list[dict[str, Any]] = [
    {},
    {"draft_window": 2},
    {"rows_per_cycle": 1, "draft_window": 1},
    {"rows_per_cycle": 3, "draft_window": 2, "kv": "stale"},
    {"resample": "serial"},
    {"resample": "serial", "rows_per_cycle": 3, "feedback": "downsample", "draft_window": 3},
    {"resample": "serial", "rows_per_cycle": 1, "kv": "refresh"},
    {"rejection": "raster-resample", "rows_per_cycle": 2, "resample": "serial"},
]
REDRAFT: list[dict[str, Any]] = [
    {"draft_window": 1},
    {"rows_per_cycle": 1, "feedback": "downsample"},
    {"rows_per_cycle": 3, "draft_window": 2, "feedback": "downsample"},
]


def counts(stats: DecodeStats) -> dict[str, int]:
    return {kind: getattr(stats, f"forwards_{kind}") for kind in KINDS} | {"cycles": stats.cycles}


@pytest.mark.parametrize("method", [AR(), ZipAR(window=3), ZipAR(window=9), DraftOnly(draft_window=2), DraftOnly()])
def test_closed_forms(method: SamplerKnobs) -> None:
    expected = method.forward_passes(GRIDS)
    assert expected is not None
    assert expected.total.low == expected.total.high
    for stats in toys.run(method).stats:
        assert counts(stats) == {key: getattr(expected, key).low for key in counts(stats)}


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_nothing_and_something_and_everything_rejected(knobs: dict[str, Any]) -> None:
    expected = MuLoSD(**knobs).forward_passes(GRIDS)
    for tau in (0.0, 0.02, 1.5):
        method = MuLoSD(tau=tau, **knobs)
        assert method.forward_passes(GRIDS) == expected, "a threshold is no forecast"
        for stats in toys.run(method, (0,)).stats:
            for key, count in counts(stats).items():
                bounds = getattr(expected, key)
                assert bounds.low <= count <= bounds.high, key
                if tau == 0:
                    assert count == bounds.low, key
                if tau > 1 and (key != "resample" or method.resample == "serial"):
                    assert count == bounds.high, key
            if tau > 1 and method.resample == "islands":
                assert stats.forwards_resample == method.one_island_fronts(GRIDS)


@pytest.mark.parametrize("knobs", REDRAFT, ids=str)
def test_redrafting(knobs: dict[str, Any]) -> None:
    for tau in (0.0, 0.01, 1.5):
        method = MuLoSD(tau=tau, rejection="raster-redraft", **knobs)
        expected = method.forward_passes(GRIDS)
        (stats,) = toys.run(method, (0,)).stats
        for key, count in counts(stats).items():
            bounds = getattr(expected, key)
            assert bounds.low <= count <= bounds.high, key
            assert tau == 0.01 or count == (bounds.low if tau == 0 else bounds.high), key


def test_a_single_row_is_serial() -> None:
    assert num_fronts(1, 5, 2, at_top=True) == num_fronts(1, 5, 2, at_top=False) == 5


def test_a_fraction_bounds_the_resampled_cells() -> None:
    serial = MuLoSD(resampled_fraction=0.3, rows_per_cycle=2, resample="serial")
    assert serial.forward_passes(GRIDS).resample == Range(0, 2 * (int(0.3 * 32) - 1))
    assert replace(serial, resample="islands").forward_passes(GRIDS).resample == Range(0, 2 * int(0.3 * 32))
    assert replace(serial, resampled_fraction=0.01).forward_passes(GRIDS).resample == Range(0, 0)


def test_methods_without_a_forecast() -> None:
    assert SamplerKnobs().forward_passes(GRIDS) is None


def card(draft_grid: int | None = 4) -> Card:
    return Card("toy-8", "toy", 8, 32, 32, draft_grid, PRESET, "", Path(), {})


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (MuLoSD(pool_k=33), "mulosd.pool_k = 33 exceeds the 32 codes of toy-8; choose from 1 to 32."),
        (MuLoSD(radius=9), "mulosd.radius = 9 exceeds the 8 x 8 grid of toy-8; choose from 0 to 8."),
        (
            MuLoSD(rows_per_cycle=4, kv="refresh"),
            "mulosd.rows_per_cycle = 4 covers all 4 draft rows of toy-8; choose from 1 to 3, or all.",
        ),
        (
            MuLoSD(pooling="unfiltered", top_k=0, top_p=1.0),
            "mulosd.pooling = 'unfiltered' does nothing on toy-8, which samples without top_k and top_p; "
            "leave it out, or set one of them.",
        ),
    ],
)
def test_what_does_not_fit(method: SamplerKnobs, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        method.check_fit(card())
    assert str(caught.value) == text
    filtered = [MuLoSD(pooling="unfiltered", **{other: off}) for other, off in (("top_k", 0), ("top_p", 1.0))]
    for fitting in (MuLoSD(pool_k=32, radius=8), MuLoSD(rows_per_cycle=3), *filtered, AR(), ZipAR(window=100)):
        fitting.check_fit(card())


def test_a_draft_needs_a_drafter() -> None:
    with pytest.raises(ConfigError, match="toy-8 has no drafter"):
        DraftOnly().check_fit(card(None))
    ZipAR().check_fit(card(None))


def test_samplers() -> None:
    """Knobs before the preset; the drafter's before the target's, its guidance from the card."""
    assert AR().target_sampling(PRESET)._asdict() == {"guidance": 3.0, "temperature": 0.9, "top_k": 100, "top_p": 0.95}
    method = MuLoSD(guidance=5.0, temperature=0.0, top_k=0, draft_top_p=0.5)
    assert method.target_sampling(PRESET)._asdict() == {"guidance": 5.0, "temperature": 0.0, "top_k": 0, "top_p": 0.95}
    assert method.draft_sampling(PRESET)._asdict() == {"guidance": 2.0, "temperature": 0.0, "top_k": 0, "top_p": 0.5}
    own = DraftOnly(draft_guidance=1.0, draft_temperature=0.5, draft_top_k=7)
    assert own.draft_sampling(PRESET)._asdict() == {"guidance": 1.0, "temperature": 0.5, "top_k": 7, "top_p": 0.95}
