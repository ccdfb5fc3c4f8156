"""An image does not depend on its batch, whatever the method and however its knobs are combined."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mulosd.decoding.engine import Engine
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from mulosd.sampling.filters import Sampler
from mulosd.types import Ints
from tests.unit.decoding import toys

SETTINGS = settings(max_examples=30)
WINDOW = st.integers(1, 4)


@st.composite
def mulosd_methods(draw: st.DrawFn) -> MuLoSD:
    """Every policy of rejection, order, K/V, visibility, threshold and feedback, in combinations that make sense."""
    rows: Any = draw(st.sampled_from([1, "all"]))
    knobs: dict[str, Any] = {"pool_k": draw(st.sampled_from([1, 4])), "rows_per_cycle": rows, "upsampler": "repeat"}
    knobs |= {"draft_window": draw(WINDOW), "rejection": draw(st.sampled_from(["expand", "local", "raster-resample"]))}
    if draw(st.integers(0, 3)) == 0:
        knobs |= {"rejection": "raster-redraft", "tau": draw(st.sampled_from([0.01, 0.05]))}
    else:
        knobs |= draw(st.sampled_from([{"tau": 0.02}, {"tau": 0.1}, {"resampled_fraction": 0.4}]))
        if draw(st.booleans()):
            refresh = ["refresh"] if rows == 1 else []
            knobs |= {"resample": "serial", "kv": draw(st.sampled_from(["stale", "carry", *refresh]))}
        else:
            knobs |= {"island_window": draw(WINDOW), "pending": draw(st.sampled_from(["masked", "visible"]))}
            knobs["kv"] = draw(st.sampled_from(["stale", "auto", "refresh"])) if rows == 1 else "auto"
    if knobs["rejection"] == "expand":
        knobs["radius"] = draw(st.integers(0, 2))
    if rows == 1 or knobs["rejection"] == "raster-redraft":
        knobs["feedback"] = draw(st.sampled_from(["none", "downsample"]))
    return MuLoSD(**knobs)


METHOD = st.one_of(
    st.just(AR()),
    st.builds(ZipAR, window=WINDOW),
    st.builds(DraftOnly, draft_window=WINDOW, upsampler=st.just("repeat")),
    *[mulosd_methods()] * 5,
)
SAMPLER = st.sampled_from(
    [Sampler(guidance=3.0), Sampler(guidance=3.0, cfg_interval=6, top_k=8), Sampler(guidance=1.0)]
)


@SETTINGS
@given(METHOD, st.permutations(range(4)), st.integers(2, 4), SAMPLER)
def test_an_image_is_the_same_alone(method: SamplerKnobs, order: list[int], size: int, sampler: Sampler) -> None:
    options: dict[str, Any] = {"draft_grid": 2, "upsampler": "repeat", "sampler": sampler}
    images = order[:size]
    together = toys.run(method, images, **options)
    for b, image in enumerate(images):
        alone = toys.run(method, (image,), **options)
        assert np.array_equal(together.tokens[b], alone.tokens[0])
        assert np.array_equal(together.status[b], alone.status[0])
        assert toys.counters(together, b) == toys.counters(alone)
        assert together.stats[b].chosen_taus == pytest.approx(alone.stats[0].chosen_taus, rel=1e-9)


def test_images_of_these_batches_advance_on_their_own() -> None:
    """The comparison is worth something: images of one batch differ in cycles and in forwards."""
    redraft = MuLoSD(rejection="raster-redraft", tau=0.05, pool_k=4, feedback="downsample", upsampler="repeat")
    islands = MuLoSD(tau=0.002, pool_k=4, rows_per_cycle=1, radius=0, upsampler="repeat")
    for method, names in ((redraft, ("cycles", "draft", "verify")), (islands, ("resample", "refresh"))):
        stats = [vars(one) for one in toys.run(method, range(4), draft_grid=2, upsampler="repeat").stats]
        for name in names:
            assert len({one[name if name == "cycles" else f"forwards_{name}"] for one in stats}) > 1, name


def test_a_dependence_on_the_place_in_the_batch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Engine.draw

    def shifted(self: Engine, logits: Tensor, positions: Ints) -> Ints:
        return (draw(self, logits, positions) + np.arange(self.batch)[:, None]) % toys.CODES

    monkeypatch.setattr(Engine, "draw", shifted)
    together, alone = toys.run(MuLoSD(), (0, 1), draft_grid=2), toys.run(MuLoSD(), (1,), draft_grid=2)
    assert not np.array_equal(together.tokens[1], alone.tokens[0])
