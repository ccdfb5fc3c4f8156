"""t(m): which calls are timed, how they look to a model, and what the report says of them."""

from types import SimpleNamespace

import pytest

from pipelines.latency.forward_time import ROUNDS, WARMUP_ROUNDS, forward_times, sizes
from tests.fakes import FakeModel


class Clock:
    """Advances by what the last call is worth: its m in milliseconds, and a hundred times that while warming up."""

    def __init__(self, *models: FakeModel) -> None:
        self.models, self.now, self.seen, self.synchronised = models, 0.0, 0, 0

    def __call__(self) -> float:
        calls = [call for model in self.models for call in model.calls]
        if len(calls) > self.seen:
            self.seen = len(calls)
            newest = max((model for model in self.models if model.calls), key=lambda m: self.models.index(m))
            m = newest.calls[-1][0].shape[1]
            num = len(sizes(newest.config.num_tokens)) if newest is self.models[0] else 1
            self.now += m * (100 if len(newest.calls) <= WARMUP_ROUNDS * num else 1) / 1000
        return self.now

    def synchronize(self) -> None:
        self.synchronised += 1


def measured(grid: int = 4, draft_grid: int = 2) -> tuple[dict[str, dict[str, float]], FakeModel, FakeModel, Clock]:
    model, drafter = FakeModel(grid), FakeModel(draft_grid)
    clock = Clock(model, drafter)
    target = SimpleNamespace(model=model, drafter=drafter)
    return forward_times(target, synchronize=clock.synchronize, clock=clock), model, drafter, clock


@pytest.mark.parametrize(("num", "expected"), [(1, [1]), (4, [1, 2, 4]), (9, [1, 2, 4, 8, 9]), (16, [1, 2, 4, 8, 16])])
def test_sizes_reach_the_grid(num: int, expected: list[int]) -> None:
    assert sizes(num) == expected


def test_medians_come_from_the_clock_without_the_warm_up() -> None:
    times, model, drafter, clock = measured()
    assert times["target"] == pytest.approx({"1": 1, "2": 2, "4": 4, "8": 8, "16": 16})
    assert times["drafter"] == pytest.approx({"1": 1})
    assert len(model.calls) == 5 * (ROUNDS + WARMUP_ROUNDS)
    assert len(drafter.calls) == ROUNDS + WARMUP_ROUNDS
    assert clock.synchronised == 2 * (len(model.calls) + len(drafter.calls))


def test_sizes_take_turns() -> None:
    _, model, _, _ = measured()
    assert [call[0].shape[1] for call in model.calls[:10]] == [1, 2, 4, 8, 16] * 2


def test_a_call_is_a_guided_causal_chain_at_a_half_full_cache() -> None:
    _, model, _, _ = measured()
    for m, (tokens, positions, slots, mask) in zip([1, 2, 4, 8, 16], model.calls, strict=False):
        start = min(8, 16 - m)
        assert tokens.shape == (2, m)
        assert positions.tolist() == slots.tolist() == [list(range(start, start + m))] * 2
        assert mask.shape == (2, m, start + m)
        assert mask[0].sum(-1).tolist() == [p + 1 for p in range(start, start + m)]


def test_a_target_without_a_drafter_has_its_own_times_only() -> None:
    target = SimpleNamespace(model=FakeModel(2), drafter=None)
    assert list(forward_times(target, synchronize=lambda: None)) == ["target"]


def test_the_real_transformer_takes_these_calls() -> None:
    torch = pytest.importorskip("torch")
    from mulosd.models.gpt_config import GPTConfig
    from mulosd.models.transformer import Transformer

    torch.manual_seed(0)
    model = Transformer(GPTConfig(dim=16, n_layers=1, n_heads=2, vocab_size=7, grid=4, prefix_len=3, ffn_dim=16))
    times = forward_times(SimpleNamespace(model=model, drafter=None), synchronize=lambda: None)
    assert list(times["target"]) == ["1", "2", "4", "8", "16"]
    assert all(0 < ms < 60_000 for ms in times["target"].values())
