"""What a query may see: committed cells, its own slot, its row's provisional start. Everything else is poisoned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding import mulosd
from mulosd.decoding.engine import Engine
from mulosd.decoding.job import Result
from mulosd.methods import AR, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.image_gpt import ImageGPT
from mulosd.types import Bools, Ints
from tests.unit.decoding import toys

METHODS: dict[str, SamplerKnobs] = {
    "ar": AR(),
    "zipar": ZipAR(window=2),
    "islands": MuLoSD(tau=0.02, pool_k=2, radius=0, island_window=2),
    "islands-one": MuLoSD(tau=0.05, pool_k=2, island_window=1),
    "islands-rows": MuLoSD(tau=0.02, pool_k=2, rows_per_cycle=2, island_window=1),
    "serial-rows": MuLoSD(tau=0.02, pool_k=2, radius=0, rows_per_cycle=1, resample="serial"),
}


def poisoned_run(method: SamplerKnobs, value: float, dtype: torch.dtype) -> Result:
    """Caches start full of `value`; so do the slots of pending cells once the verification forward filled them."""
    models: list[toys.Poisoned] = []

    def wrap(model: ImageGPT) -> toys.Poisoned:
        models.append(toys.Poisoned(model, value))
        return models[0]

    open_again = mulosd._open_again

    def open_and_poison(method: MuLoSD, target: Engine, rejected: Bools, resampled: Bools) -> None:
        open_again(method, target, rejected, resampled)
        kv, T = target.cache.kv, target.model.config.prefix_len
        for b in range(target.batch):
            pending = T + np.nonzero((rejected | resampled)[b].ravel())[0]
            for row in (b, b + target.batch):
                kv[:, :, row, :, pending] = value
        kv[..., T + target.cache.trash, :] = value

    with toys.patched(mulosd, "_open_again", open_and_poison):
        return toys.run(method, wrap=wrap, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in METHODS] + [("islands", torch.float32), ("zipar", torch.float32)],
)
def test_hidden_slots_do_not_matter(name: str, dtype: torch.dtype) -> None:
    plain = toys.run(METHODS[name], dtype=dtype)
    for value in (1e4, -1e4):
        poisoned = poisoned_run(METHODS[name], value, dtype)
        assert toys.same_tokens(plain, poisoned)
        assert np.array_equal(plain.status, poisoned.status)


@pytest.mark.parametrize("name", ["islands", "islands-rows", "zipar"])
def test_logits_are_bit_equal_under_poison(name: str) -> None:
    logits: list[list[Tensor]] = [[], []]
    feed = Engine.feed
    for kept, value in zip(logits, (0.0, 1e4), strict=True):

        def recording(
            self: Engine, queries: Any, kind: str, *, causal: bool = False, to: list[Tensor] = kept
        ) -> Tensor:
            result = feed(self, queries, kind, causal=causal)
            real = [torch.arange(result.shape[1]) < len(q.tokens) for q in queries]
            to.append(result[torch.stack(real)])
            return result

        with toys.patched(Engine, "feed", recording):
            poisoned_run(METHODS[name], value, torch.float32)
    assert len(logits[0]) == len(logits[1]) > 3
    assert all(torch.equal(a, b) for a, b in zip(*logits, strict=True))


def mask_with(change: Callable[[Engine, Bools, Ints], None]) -> Callable[..., Bools]:
    original = Engine._mask

    def changed(self: Engine, positions: Ints, slots: Ints, rows: Ints, causal: bool) -> Bools:
        visible = original(self, positions, slots, rows, causal)
        full = np.zeros((*visible.shape[:2], self.cache.slots), bool)
        full[..., : visible.shape[-1]] = visible
        change(self, full, positions)
        return full

    return changed


def show_pending(engine: Engine, visible: Bools, positions: Ints) -> None:
    visible[:, :, : engine.num_tokens] |= np.arange(engine.num_tokens) <= positions[..., None]


def show_future(engine: Engine, visible: Bools, positions: Ints) -> None:
    visible[:, :, engine.num_tokens - 1] = True


def show_trash(engine: Engine, visible: Bools, positions: Ints) -> None:
    visible[:, :, engine.cache.trash] = True


def show_scratch(engine: Engine, visible: Bools, positions: Ints) -> None:
    visible[:, :, engine.num_tokens + engine.grid - 1] = True


@pytest.mark.parametrize("leak", [show_pending, show_future, show_trash, show_scratch])
def test_a_leak_is_seen_by_the_poison(leak: Callable[..., None]) -> None:
    method = METHODS["islands-one"]
    with toys.patched(Engine, "_mask", mask_with(leak)):
        clean = poisoned_run(method, 0.0, torch.float64)
        assert not toys.same_tokens(clean, poisoned_run(method, 1e4, torch.float64))


class Watched:
    """Records what each query sees: (call, image) -> tokens, positions, slots, visible slots of its real queries."""

    def __init__(self, model: ImageGPT) -> None:
        self._model = model
        self.config, self.prefix, self.new_cache = model.config, model.prefix, model.new_cache
        self.calls: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def __call__(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, cache: Any, mask: Any, prefix: Any = None
    ) -> Tensor:
        full = torch.zeros(*slots.shape, cache.slots, dtype=torch.bool)
        seen = torch.ones(mask, dtype=torch.bool) if isinstance(mask, int) else mask
        full[..., : seen.shape[-1]] = seen
        self.calls.append((tokens, positions, slots, full))
        return self._model(tokens, positions, slots, cache, mask, prefix)  # type: ignore[no-any-return]


def watch(method: SamplerKnobs) -> tuple[Watched, Result]:
    models: list[Watched] = []

    def wrap(model: ImageGPT) -> Watched:
        models.append(Watched(model))
        return models[0]

    result = toys.run(method, wrap=wrap)
    return models[0], result


@pytest.mark.parametrize("window", [1, 2, 5])
def test_zipar_sees_what_is_fed_and_one_provisional_start(window: int) -> None:
    """Restated per query: fed cells up to its position, itself, and its row's stand-in until the true token is fed."""
    watched, result = watch(ZipAR(window=window))
    grid, num = 8, 64
    stand_ins = 0
    for b in range(3):
        fed: set[int] = set()
        provisional: set[int] = set()
        for tokens, positions, slots, visible in watched.calls:
            real = [q for q in range(slots.shape[1]) if slots[b, q] != num + grid]
            in_call = [int(slots[b, q]) for q in real]
            assert len(set(in_call)) == len(in_call), "two queries write one slot"
            fed |= {slot for slot in in_call if slot < num}
            provisional |= {slot - num for slot in in_call if slot >= num}
            provisional = {row for row in provisional if row * grid - 1 not in fed}  # gone once the true token is fed
            for q in real:
                slot, position = int(slots[b, q]), int(positions[b, q])
                row = slot - num if slot >= num else (position + 1) // grid  # the row of the cell that it decides
                seen = set(visible[b, q].nonzero()[:, 0].tolist())
                expected = {p for p in fed if p <= position} | {slot}
                # a row's last token, fed late, decides nothing: it belongs to its own row
                rows = {row} if (position + 1) % grid or slot >= num else {row, row - 1}
                allowed = {num + r for r in rows & provisional}
                assert expected <= seen <= expected | allowed
                if len(rows) == 1:
                    assert allowed <= seen
                assert torch.equal(visible[b, q], visible[b + 3, q])
                if slot < num:  # a committed slot holds the final token of its position
                    assert slot == position
                    assert int(tokens[b, q]) == int(result.tokens[b].ravel()[position])
                else:
                    stand_ins += 1
                    assert position == row * grid - 1
        assert not provisional, "a stand-in outlived the true token"
    assert stand_ins == 3 * 6  # rows 2 to 7: row 1 starts when the serial first row is done


def test_the_stand_in_is_the_most_recent_token_of_the_row_above() -> None:
    watched, result = watch(ZipAR(window=2))
    for b in range(3):
        for tokens, _, slots, _ in watched.calls:
            for q in (slots[b] >= 64).nonzero()[:, 0].tolist():
                row = int(slots[b, q]) - 64
                if row < 8:  # not trash
                    assert int(tokens[b, q]) == int(result.tokens[b, row - 1, 1])  # window 2: columns 0 and 1 are done


def test_islands_never_see_pending_cells() -> None:
    """After the verification, a query sees accepted cells and cells drawn and fed since; never a pending draft."""
    watched, result = watch(METHODS["islands-one"])
    for b in range(3):
        pending = set(np.nonzero(toys.resampled_map(result, b).ravel())[0].tolist())
        assert pending
        fed: set[int] = set()
        for tokens, _, slots, visible in watched.calls[1:]:
            real = [q for q in range(slots.shape[1]) if slots[b, q] != 72]
            fed |= {int(slots[b, q]) for q in real}
            for q in real:
                seen = set(visible[b, q].nonzero()[:, 0].tolist())
                assert not (seen & pending) - fed
                slot = int(slots[b, q])
                if slot < 64:
                    assert int(tokens[b, q]) == int(result.tokens[b].ravel()[slot])


def test_verification_sees_the_whole_draft_before_it() -> None:
    watched, _ = watch(METHODS["islands-one"])
    _, positions, slots, visible = watched.calls[0]
    assert torch.equal(positions, slots)
    assert torch.equal(positions[0], torch.arange(63))  # the last draft judges nothing
    expected = torch.arange(73) <= positions[0][:, None]
    assert torch.equal(visible[0], expected)
