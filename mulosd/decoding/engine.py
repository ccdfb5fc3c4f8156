"""One model decoding a batch: cache, guidance, counters and timing around the position-addressed forward.

A decoder hands over, per image, a ragged list of queries; the engine pads them into the trash slot, builds
the mask from what is committed, runs conditional and null rows in one call and counts one forward for every
image that had a real query.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mulosd.models.condition import Condition, Prefix
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.kv_cache import KVCache
from mulosd.sampling import filters as sampling
from mulosd.sampling.filters import Sampler
from mulosd.sampling.finite import FiniteCheck
from mulosd.types import Bools, DecodeStats, Ints


class ImageModel(Protocol):
    """What the engine needs of a model (`mulosd.models.image_gpt.ImageGPT`, toy models in tests)."""

    config: GPTConfig

    def new_cache(self, rows: int, *, scratch: int = 0, prefix_len: int | None = None) -> KVCache:
        """An empty cache with room for a prefix of `prefix_len` rows."""
        ...

    def prefix(self, condition: Condition, *, with_null: bool) -> Prefix:
        """Prefix rows and their mask."""
        ...

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: KVCache,
        mask: Tensor | int,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """The position-addressed forward; mask: bool [R, Q, S'], or S' when every query sees the first S' slots."""
        ...


@dataclass
class Queries:
    """Queries of one image in one call: code, raster position and slot each, and the row that it decides.

    cell_rows: grid row of the cell that a query decides or belongs to; rules which provisional row start
    it may see (-1: none).
    """

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    cell_rows: list[int]

    @classmethod
    def empty(cls) -> "Queries":
        """No query."""
        return cls([], [], [], [])

    def add(self, token: int, position: int, slot: int, cell_row: int) -> int:
        """Append one query; returns its index."""
        self.tokens.append(token)
        self.positions.append(position)
        self.slots.append(slot)
        self.cell_rows.append(cell_row)
        return len(self.tokens) - 1


class Engine:
    """State of B images under one model.

    tokens [B, N] int64; decided [B, N]: the token is fixed; committed [B, N]: its slot holds K/V of that
    token. N = grid cells. Scratch slot N + row holds the provisional start of that row. iteration: of the noise, for
    cells that are sampled again. finite: notes images whose logits are not.
    """

    def __init__(
        self,
        model: ImageModel,
        condition: Condition,
        seeds: Tensor,
        sampler: Sampler,
        stats: Sequence[DecodeStats],
        *,
        stream: str,
        finite: FiniteCheck | None = None,
    ) -> None:
        self.finite = finite or FiniteCheck(len(seeds))
        self.model, self.sampler, self.stats, self.stream = model, sampler, stats, stream
        self.seeds = seeds
        self.batch = len(seeds)
        self.grid = model.config.grid
        self.num_tokens = model.config.num_tokens
        self.is_guided = sampler.guidance > 1.0
        prefix = model.prefix(condition, with_null=self.is_guided)
        rows, length = prefix.mask.shape
        self.cache = model.new_cache(rows, scratch=self.grid, prefix_len=length)
        self.cache.prefix_mask = prefix.mask.bool()
        self._prefix: Tensor | None = prefix.rows
        self.tokens: Ints = np.zeros((self.batch, self.num_tokens), np.int64)
        self.decided: Bools = np.zeros((self.batch, self.num_tokens), bool)
        self.committed: Bools = np.zeros((self.batch, self.num_tokens), bool)
        # rows whose start was decided after a provisional token that still stands in scratch
        self.provisional: Bools = np.zeros((self.batch, self.grid), bool)
        self._start_logits: Tensor | None = None
        self.iteration = 0

    def start_logits(self, kind: str) -> Tensor:
        """Logits [B, V] of position -1; runs the prefix by itself if no forward has carried it yet."""
        if self._start_logits is None:
            self.feed([Queries.empty() for _ in range(self.batch)], kind)
        assert self._start_logits is not None
        return self._start_logits

    def chain(self, b: int, positions: Iterable[int]) -> Queries:
        """Queries that feed an image's tokens at `positions` into their own slots."""
        where = [int(position) for position in positions]
        return Queries([int(self.tokens[b, p]) for p in where], where, where, [-1] * len(where))

    def forget(self, b: int, start: int) -> None:
        """Discard an image's tokens from position `start`, the first of a row, on."""
        self.decided[b, start:] = self.committed[b, start:] = False
        self.provisional[b, start // self.grid :] = False

    def draw(self, logits: Tensor, positions: Ints) -> Ints:
        """Codes [B, Q] for cells `positions` [B, Q] from their logits [B, Q, V]."""
        where = torch.from_numpy(positions).to(self.seeds.device)
        codes = sampling.draw(
            logits, self.sampler, self.seeds, where, stream=self.stream, grid=self.grid, iteration=self.iteration
        )
        return codes.cpu().numpy()

    def feed(self, queries: Sequence[Queries], kind: str, *, causal: bool = False) -> Tensor:
        """One forward over ragged queries -> logits [B, Qmax, V], counted as `kind`.

        A query sees the committed cells up to its own position (and what `Queries.cell_rows` grants);
        with `causal` every slot up to its position. Fed grid slots count as committed from this call on.
        The first call also carries the prefix, whose last row's logits are kept for `start_logits`.
        """
        width = max(len(q.tokens) for q in queries)
        tokens, positions = np.zeros((2, self.batch, width), np.int64)
        slots = np.full((self.batch, width), self.cache.trash, np.int64)
        rows = np.full((self.batch, width), -1, np.int64)
        for b, q in enumerate(queries):
            used = len(q.tokens)
            tokens[b, :used], positions[b, :used], slots[b, :used] = q.tokens, q.positions, q.slots
            rows[b, :used] = q.cell_rows
            self.committed[b, [slot for slot in q.slots if slot < self.num_tokens]] = True
        first = self._prefix is not None
        self._count(kind, [len(q.tokens) for q in queries], carries_prefix=first)
        mask = self._mask(positions, slots, rows, causal)
        device = self.seeds.device
        fed, where, store, seen = (torch.from_numpy(a).to(device) for a in (tokens, positions, slots, mask))
        logits = self._call(kind, fed, where, store, seen)
        if first:
            self._start_logits, logits = logits[:, 0], logits[:, 1:]
        return logits

    def feed_lockstep(self, position: int, kind: str) -> Tensor:
        """The plain AR step: every image feeds its token at `position` and sees all before it; [B, V].

        No mask is built and no slot beyond `position` is attended to.
        """
        device = self.seeds.device
        tokens = torch.from_numpy(self.tokens[:, position : position + 1]).to(device)
        where = torch.full_like(tokens, position)
        self._count(kind, [1] * self.batch, carries_prefix=False)
        self.committed[:, position] = True
        return self._call(kind, tokens, where, where, position + 1)[:, -1]

    def draw_lockstep(self, logits: Tensor, position: int) -> None:
        """Decide cell `position` of every image from logits [B, V]."""
        where = np.full((self.batch, 1), position)
        self.tokens[:, position] = self.draw(logits[:, None], where)[:, 0]
        self.decided[:, position] = True

    def _count(self, kind: str, num_queries: Sequence[int], *, carries_prefix: bool) -> None:
        name = f"forwards_{kind}"
        for stats, num in zip(self.stats, num_queries, strict=True):
            if num or carries_prefix:
                setattr(stats, name, getattr(stats, name) + 1)
                stats.tokens_fed += num

    def _call(self, kind: str, tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor | int) -> Tensor:
        prefix, self._prefix = self._prefix, None
        # Padded queries see nothing, so that their logits mean nothing; a lockstep call has none.
        real = None
        if not isinstance(mask, int):
            real = F.pad(slots != self.cache.trash, (int(prefix is not None), 0), value=True)
        where = positions if prefix is None else F.pad(positions, (1, 0), value=-1)
        if self.is_guided:
            tokens, positions, slots = (torch.cat([t, t]) for t in (tokens, positions, slots))
            mask = mask if isinstance(mask, int) else torch.cat([mask, mask])
        logits = self.model(tokens, positions, slots, self.cache, mask, prefix)
        logits = sampling.in_dtype(logits, self.sampler.logits_dtype, self.cache.kv.dtype)
        logits = sampling.guide_up_to(logits, where, self.sampler) if self.is_guided else logits
        self.finite.see(kind, logits, real)
        return logits

    def _mask(self, positions: Ints, slots: Ints, rows: Ints, causal: bool) -> Bools:
        """Visible slots [B, Q, S'], cut after the last slot that any query sees. Trash is never visible."""
        batch, width = positions.shape
        visible = np.zeros((batch, width, self.cache.slots), bool)
        before = np.arange(self.num_tokens) <= positions[..., None]
        real = (slots != self.cache.trash)[..., None]
        visible[:, :, : self.num_tokens] = before & real & (causal | self.committed[:, None, :])
        if not causal:
            self._show_provisional(visible, rows)
        b, q = np.nonzero(real[..., 0])
        visible[b, q, slots[b, q]] = True
        used = np.nonzero(visible.any((0, 1)))[0]
        return visible[:, :, : int(used[-1]) + 1 if len(used) else 0]

    def _show_provisional(self, visible: Bools, rows: Ints) -> None:
        """A provisional row start is visible to its row until the true end of the row above is committed."""
        for b, row in zip(*np.nonzero(self.provisional), strict=True):
            if self.committed[b, row * self.grid - 1]:
                self.provisional[b, row] = False
            else:
                visible[b, rows[b] == row, self.num_tokens + row] = True
