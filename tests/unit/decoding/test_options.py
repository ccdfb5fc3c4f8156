"""The arms of MuLo-SD's ablations, decoded: exact corners, K/V policies, visibility, feedback, batches, forwards."""

from typing import Any

import numpy as np
import pytest
import torch

from mulosd.decoding import draft, mulosd, rejection, verify
from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Job, Result
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs
from mulosd.models.image_gpt import ImageGPT
from mulosd.sampling.filters import Sampler
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED, Bools
from tests.unit.decoding import toys
from tests.unit.decoding.test_wavefront import num_forwards, simulate

ROWS = {"tau": 0.02, "pool_k": 2, "radius": 0, "rows_per_cycle": 1}
REDRAFT: dict[str, Any] = {"tau": 0.01, "rejection": "raster-redraft"}
OPTIONS: dict[str, MuLoSD] = {
    "local": MuLoSD(tau=0.02, rejection="local", island_window=2),
    "raster-serial": MuLoSD(tau=0.02, rejection="raster-resample", resample="serial", rows_per_cycle=2),
    "raster-islands": MuLoSD(tau=0.02, rejection="raster-resample", rows_per_cycle=2, island_window=2),
    "redraft": MuLoSD(**REDRAFT, draft_window=2),
    "redraft-rows": MuLoSD(**REDRAFT, rows_per_cycle=2, draft_window=2),
    "redraft-feedback": MuLoSD(**REDRAFT, rows_per_cycle=1, feedback="downsample"),
    "visible": MuLoSD(tau=0.02, pool_k=2, pending="visible", island_window=2),
    "visible-rows": MuLoSD(**ROWS, pending="visible", island_window=1),
    "islands-stale": MuLoSD(**ROWS, kv="stale"),
    "serial-stale": MuLoSD(**ROWS, resample="serial", kv="stale"),
    "serial-refresh": MuLoSD(**ROWS, resample="serial", kv="refresh"),
    "unfiltered": MuLoSD(tau=0.05, pool_k=2, radius=0, pooling="unfiltered", top_k=4),
    "feedback": MuLoSD(**ROWS, feedback="downsample", draft_window=2),
    "adaptive": MuLoSD(resampled_fraction=0.3, rows_per_cycle=2),
    "draft-sampler": MuLoSD(**ROWS, draft_temperature=0.5, draft_top_k=3, draft_top_p=0.9),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    method = OPTIONS[name]
    options = {"sampler": Sampler(guidance=3.0, top_k=4)} if name == "unfiltered" else {}
    together = toys.run(method, **options)
    for image in range(3):
        alone = toys.run(method, (image,), **options)
        assert np.array_equal(together.tokens[image], alone.tokens[0])
        assert np.array_equal(together.status[image], alone.status[0])
        assert toys.counters(together, image) == toys.counters(alone)
        assert together.stats[image].chosen_taus == pytest.approx(alone.stats[0].chosen_taus, rel=1e-9)
    assert all(0 < stats.rejected < stats.drafted for stats in together.stats), "a weak setting"


def test_settings_of_this_file_run_ragged() -> None:
    for name in ("redraft", "redraft-rows", "redraft-feedback"):
        assert len({stats.cycles for stats in toys.run(OPTIONS[name]).stats}) > 1, name


@pytest.mark.parametrize("rows", [2, "all"])
def test_the_chosen_taus_are_kept_and_reproduce_the_image(rows: Any) -> None:
    adaptive = toys.run(MuLoSD(resampled_fraction=0.3, rows_per_cycle=rows))
    for b, stats in enumerate(adaptive.stats):
        assert len(stats.chosen_taus) == stats.cycles
        assert len(set(stats.chosen_taus)) == stats.cycles, "a weak setting: every cycle chose alike"
        first = MuLoSD(tau=stats.chosen_taus[0], rows_per_cycle=rows)
        block = slice(0, 8 if rows == "all" else 4)
        fixed = toys.run(first, (b,))
        assert np.array_equal(fixed.status[0][block], adaptive.status[b][block])
        assert np.array_equal(fixed.tokens[0][block], adaptive.tokens[b][block])
    assert all(stats.chosen_taus == [] for stats in toys.run(MuLoSD(tau=0.02)).stats)


# Rejection policies.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [1, 3, "all"])
def test_resampling_all_in_raster_order_is_ar(rows: Any, dtype: torch.dtype) -> None:
    method = MuLoSD(tau=1.5, rejection="raster-resample", rows_per_cycle=rows, resample="serial")
    result = toys.run(method, dtype=dtype)
    assert toys.same_tokens(result, toys.run(AR(), dtype=dtype))
    assert all(stats.cycles == stats.forwards_verify > 0 for stats in result.stats)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rows", [1, "all"])
def test_redrafting_after_every_cell_is_ar(rows: Any, dtype: torch.dtype) -> None:
    """Each cycle settles the one cell that the target draws; nothing is resampled by forwards of its own."""
    result = toys.run(MuLoSD(tau=1.5, rejection="raster-redraft", rows_per_cycle=rows), draft_grid=2, dtype=dtype)
    assert toys.same_tokens(result, toys.run(AR(), draft_grid=2, dtype=dtype))
    for stats in result.stats:
        assert (stats.cycles, stats.forwards_verify, stats.resampled, stats.accepted) == (16, 16, 16, 0)
        assert (stats.forwards_resample, stats.forwards_refresh) == (0, 0)


@pytest.mark.parametrize("name", ["redraft", "redraft-rows"])
def test_redrafting_keeps_a_prefix_and_accounts_for_every_draft(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cycle starts behind the cell that the target drew, from the draft row that covers it, with fresh noise."""
    blocks: list[draft.Block] = []
    noises: list[int] = []
    draft_block = draft.draft_block

    def recording(job: Job, target: Engine, drafter: Engine, block: draft.Block, window: int) -> None:
        blocks.append(block)
        noises.append(drafter.iteration)
        before = target.tokens.copy()
        draft_block(job, target, drafter, block, window)
        for b, start in enumerate(block.start):
            assert np.array_equal(before[b, :start], target.tokens[b, :start]), "a settled cell changed"

    monkeypatch.setattr(mulosd, "draft_block", recording)
    result = toys.run(OPTIONS[name])
    assert noises == list(range(len(blocks)))
    rows = 4 if name == "redraft" else 2
    for b, stats in enumerate(result.stats):
        own = [(block.low[b], block.high[b], block.start[b], block.stop[b]) for block in blocks if block.sizes[b]]
        assert stats.cycles == stats.forwards_verify == len(own)
        assert stats.drafted == sum(stop - start for *_, start, stop in own)
        assert stats.accepted == stats.drafted - stats.rejected
        assert stats.accepted + stats.resampled == 64
        assert stats.resampled == int((result.status[b] == STATUS_REJECTED).sum())
        assert (result.status[b] == STATUS_EXPANDED).sum() == stats.expanded == 0
        for (low, high, start, stop), following in zip(own, [*own[1:], None], strict=True):
            assert low == start // 16
            assert (high, stop) == (min(low + rows, 4), 16 * min(low + rows, 4))
            if following is not None:
                drawn = following[2] - 1  # the cell before the next start was drawn by the target or ends the block
                assert start <= drawn < stop
                assert result.status[b].ravel()[drawn] == STATUS_REJECTED or drawn == stop - 1
                assert (result.status[b].ravel()[start:drawn] == STATUS_ACCEPTED).all()


def test_redrafting_without_fresh_noise_repeats_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is keyed by the cycle: with one key for all, other images come out."""
    method = OPTIONS["redraft"]
    plain = toys.run(method)
    monkeypatch.setattr(Engine, "iteration", property(lambda self: 0, lambda self, value: None), raising=False)
    assert not toys.same_tokens(plain, toys.run(method))


def test_local_is_radius_0() -> None:
    local, zero = (toys.run(MuLoSD(tau=0.02, **knobs)) for knobs in ({"rejection": "local"}, {"radius": 0}))
    assert toys.same_tokens(local, zero)
    assert [toys.counters(local, b) for b in range(3)] == [toys.counters(zero, b) for b in range(3)]


# K/V policies.


def kept_cache(method: MuLoSD) -> tuple[Result, torch.Tensor]:
    """The result and the target's K/V behind the prefix [layers, 2, 2B, heads, slots, head_dim]."""
    models: list[toys.Poisoned] = []

    def wrap(model: ImageGPT) -> toys.Poisoned:
        models.append(toys.Poisoned(model, 0.0))
        return models[-1]

    result = toys.run(method, wrap=wrap)
    return result, models[0].caches[0].kv[..., models[0].config.prefix_len :, :]


def drift(name: str, layers: slice) -> float:
    """Largest difference between the K/V of the first three of four blocks and a prefill of the final tokens."""
    result, kv = kept_cache(OPTIONS[name])
    T = toys.family().target.config.prefix_len
    fresh = toys.teacher_forced_cache(result.tokens)[..., T:, :]
    return float((kv[layers, ..., :48, :] - fresh[layers, ..., :48, :]).abs().max())


@pytest.mark.parametrize("name", ["islands-stale", "serial-stale"])
def test_stale_keys_and_values_hold_the_final_tokens_but_an_old_context(name: str) -> None:
    assert drift(name, slice(0, 1)) < 1e-9  # the first layer depends on the token alone
    assert drift(name, slice(1, None)) > 1e-3


def test_a_refresh_leaves_nothing_stale() -> None:
    assert drift("serial-refresh", slice(None)) < 1e-9
    assert OPTIONS["islands-stale"].kv_policy == OPTIONS["serial-stale"].kv_policy == "stale"


def test_redrafting_leaves_nothing_stale() -> None:
    assert drift("redraft-rows", slice(None)) < 1e-9


@pytest.mark.parametrize("kv", ["stale", "refresh", "carry"])
def test_forwards_of_serial_policies(kv: Any) -> None:
    """sum of max(0, |R_X| - 1) for each; one refresh where a block changed and another follows."""
    result = toys.run(MuLoSD(**ROWS, resample="serial", kv=kv))
    for b, stats in enumerate(result.stats):
        sizes = toys.resampled_map(result, b).reshape(4, 16).sum(1)
        assert stats.forwards_resample == sum(max(0, int(size) - 1) for size in sizes) > 0
        assert stats.forwards_refresh == (int((sizes[:3] > 0).sum()) if kv == "refresh" else 0)
        assert (stats.forwards_draft, stats.forwards_verify) == (16, 4)


@pytest.mark.parametrize("name", ["islands-stale", "visible-rows", "raster-islands", "local"])
def test_forwards_of_island_policies(name: str) -> None:
    method = OPTIONS[name]
    result = toys.run(method)
    height = 8 if method.rows_per_cycle == "all" else 2 * method.rows_per_cycle
    for b, stats in enumerate(result.stats):
        blocks = [np.zeros((8, 8), bool) for _ in range(8 // height)]
        for i, block in enumerate(blocks):
            rows = slice(i * height, (i + 1) * height)
            block[rows] = toys.resampled_map(result, b)[rows]
        paths = [num_forwards(simulate(verify.islands(block), method.island_window)) for block in blocks]
        assert stats.forwards_resample == sum(paths) > 0
        refreshes = sum(bool(block.any()) for block in blocks[:-1])
        assert stats.forwards_refresh == (0 if method.kv_policy == "stale" else refreshes)


def test_auto_is_the_policy_that_it_names() -> None:
    for knobs, kv in (({"resample": "serial"}, "carry"), ({}, "refresh")):
        auto, named = (toys.run(MuLoSD(**ROWS, **knobs, **more)) for more in ({}, {"kv": kv}))
        assert toys.same_tokens(auto, named)
        assert [toys.counters(auto, b) for b in range(3)] == [toys.counters(named, b) for b in range(3)]


def test_policies_feed_different_tokens_and_stale_ones_show() -> None:
    serial = [toys.run(MuLoSD(**ROWS, resample="serial", kv=kv)) for kv in ("stale", "refresh", "carry")]  # type: ignore[arg-type]
    islands = [toys.run(MuLoSD(**ROWS, kv=kv)) for kv in ("stale", "refresh")]  # type: ignore[arg-type]
    assert len({result.stats[0].tokens_fed for result in serial}) == 3
    assert not toys.same_tokens(serial[0], serial[2])
    assert not toys.same_tokens(*islands)


# Pending cells.


def test_visible_drafts_matter_and_masked_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poison the drafts' K/V once they were judged: only where they stay visible does the image change."""
    open_again = mulosd._open_again

    def open_and_poison(method: MuLoSD, target: Engine, rejected: Bools, resampled: Bools) -> None:
        open_again(method, target, rejected, resampled)
        kv, T = target.cache.kv, target.model.config.prefix_len
        for b in range(target.batch):
            for row in (b, b + 3):
                kv[:, :, row, :, T + np.nonzero(resampled[b].ravel())[0]] += 5.0

    visible = OPTIONS["visible"]
    masked = MuLoSD(**{**vars(visible), "pending": "masked"})
    plain = {method.pending: toys.run(method) for method in (visible, masked)}
    assert not toys.same_tokens(plain["visible"], plain["masked"])
    assert np.array_equal(plain["visible"].status, plain["masked"].status)  # one cycle: judged alike
    monkeypatch.setattr(mulosd, "_open_again", open_and_poison)
    assert toys.same_tokens(plain["masked"], toys.run(masked))
    assert not toys.same_tokens(plain["visible"], toys.run(visible))


# Pooling.


def test_unfiltered_masses_are_larger_where_filters_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Top-k renormalises, so a surviving draft weighs less before it; a filtered one has mass only there."""
    masses: list[np.ndarray] = []
    judge = rejection.judge

    def recording(method: MuLoSD, mass: np.ndarray, start: int, grid: int) -> rejection.Verdict:
        masses.append(mass)
        return judge(method, mass, start, grid)

    monkeypatch.setattr(rejection, "judge", recording)
    for pooling in ("filtered", "unfiltered"):
        toys.run(MuLoSD(tau=0.0, pool_k=2, pooling=pooling), (0,), sampler=Sampler(guidance=3.0, top_k=3))  # type: ignore[arg-type]
    filtered, unfiltered = masses
    dropped = filtered == 0
    assert 0 < dropped.sum() < 64
    assert (unfiltered[dropped] > 0).all()
    assert (unfiltered[~dropped] < filtered[~dropped]).all()


def test_without_filters_pooling_is_one() -> None:
    a, b = (toys.run(MuLoSD(tau=0.02, pooling=pooling)) for pooling in ("filtered", "unfiltered"))  # type: ignore[arg-type]
    assert toys.same_tokens(a, b)


# Feedback.


def test_feedback_is_the_finished_image_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each cycle but the last: new drafter tokens above, their K/V those of a prefill, one draft forward more."""
    seen: list[tuple[np.ndarray, np.ndarray, torch.Tensor, np.ndarray]] = []
    feed_back = draft.feed_back

    def recording(job: Job, target: Engine, drafter: Engine, block: draft.Block) -> None:
        before = drafter.tokens.copy()
        feed_back(job, target, drafter, block)
        seen.append((before, drafter.tokens.copy(), drafter.cache.kv.clone(), target.tokens.copy()))

    monkeypatch.setattr(mulosd, "feed_back", recording)
    method = OPTIONS["feedback"]
    result = toys.run(method)
    job, T = toys.make_job(), toys.family().drafter.config.prefix_len
    assert job.downsampler is not None
    for cycle, (before, after, kv, tokens) in enumerate(seen[:3]):
        done = 4 * (cycle + 1)
        assert np.array_equal(after[:, : 4 * cycle], before[:, : 4 * cycle])
        high = torch.from_numpy(tokens.reshape(3, 8, 8)[:, : 2 * (cycle + 1)])
        assert np.array_equal(after[:, 4 * cycle : done], job.downsampler(high, cycle).flatten(1).numpy())
        assert (after[:, 4 * cycle : done] != before[:, 4 * cycle : done]).any()
        fresh = toys.teacher_forced_cache(after.reshape(3, 4, 4), toys.family().drafter)
        # the last cell of the rows is fed by the next draft
        assert torch.allclose(kv[..., T : T + done - 1, :], fresh[..., T : T + done - 1, :], atol=1e-9)
    assert np.array_equal(seen[3][0], seen[3][1]), "no feedback without a cycle to come"
    plain = toys.run(MuLoSD(**{**vars(method), "feedback": "none"}))
    assert not toys.same_tokens(result, plain)
    assert [s.forwards_draft for s in result.stats] == [s.forwards_draft + 3 for s in plain.stats]


def test_the_time_of_feedback_is_not_that_of_the_up_sampler() -> None:
    job = toys.make_job((0,))
    inner = job.downsampler
    assert inner is not None
    booked: list[tuple[float, float]] = []

    def watched(high: torch.Tensor, start: int) -> torch.Tensor:
        booked.append((job.stats[0].time_upsample_s, job.stats[0].time_downsample_s))
        return inner(high, start)

    job.downsampler = watched
    (stats,) = toys.decode(job, OPTIONS["feedback"]).stats
    assert len(booked) == 3
    assert all(up > 0 for up, _ in booked)
    assert [down > 0 for _, down in booked] == [False, True, True]
    assert stats.time_downsample_s > booked[-1][1]
    assert toys.run(MuLoSD(**ROWS), (0,)).stats[0].time_downsample_s == 0


def test_feedback_leaves_finished_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where images finish rows at different cycles."""
    feed_back = draft.feed_back

    def recording(job: Job, target: Engine, drafter: Engine, block: draft.Block) -> None:
        before = target.tokens.copy(), drafter.tokens.copy()
        feed_back(job, target, drafter, block)
        assert np.array_equal(before[0], target.tokens)
        for b in range(3):
            finished = target.decided[b].reshape(4, 16).all(1)
            fed = finished & (np.arange(4) >= block.low[b]) & ~finished.all()
            changed = (before[1][b] != drafter.tokens[b]).reshape(4, 4).any(1)
            assert not (changed & ~fed).any()

    monkeypatch.setattr(mulosd, "feed_back", recording)
    toys.run(OPTIONS["redraft-feedback"])


# Sampler of the drafter, adaptive tau.


def test_the_share_of_resampled_cells_stays_below_the_fraction() -> None:
    shares = {}
    for fraction in (0.1, 0.3, 0.6):
        result = toys.run(MuLoSD(resampled_fraction=fraction, rows_per_cycle=2, radius=0))
        for b in range(3):
            cells = toys.resampled_map(result, b).reshape(2, 32).mean(1)
            assert (cells <= fraction).all()
            assert (cells > fraction - 1 / 32).all()  # no ties and no expansion: one more cell would be too many
        shares[fraction] = result.stats[0].resampled
    assert sorted(shares.values()) == list(shares.values())


def test_draft_only_takes_the_samplers_of_the_job() -> None:
    """The decoders know samplers, not knobs: a greedy drafter draws the argmax."""
    greedy = toys.run(DraftOnly(), draft_sampler=Sampler(guidance=2.0, top_k=1), upsampler="repeat")
    assert not toys.same_tokens(greedy, toys.run(DraftOnly(), upsampler="repeat"))


@pytest.mark.parametrize(
    "method", [AR(), DraftOnly(), MuLoSD(tau=0.3), MuLoSD(tau=0.3, rejection="raster-redraft")], ids=repr
)
@pytest.mark.parametrize("greedy", [Sampler(guidance=2.0, temperature=0.0), Sampler(guidance=2.0, top_k=1)], ids=repr)
def test_a_greedy_image_does_not_depend_on_its_seed(method: SamplerKnobs, greedy: Sampler) -> None:
    """In bfloat16, where several codes often share the largest logit."""
    options = {"dtype": torch.bfloat16, "sampler": greedy, "draft_sampler": greedy}
    one, other = toys.run(method, (0, 3), **options).tokens  # one caption, two seeds
    assert np.array_equal(one, other)
    one, other = toys.run(method, (0, 3), dtype=torch.bfloat16).tokens
    assert not np.array_equal(one, other)
