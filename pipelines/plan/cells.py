"""The values of a plan: samples, chunks, cells, with the keys and seeds that results depend on. Pure and light.

cell = one resolved configuration; chunk = a fixed run of `chunk_prompts` prompts' images, cut by the prompt list and
never by the number of workers.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mulosd.families.card import Card
from mulosd.files.pin import label_of
from mulosd.files.publish import canonical_json
from mulosd.methods import SamplerKnobs, knobs_of
from mulosd.types import Prompt
from pipelines.plan.sweep import Sweep

KEY_DIGITS = 16  # hexadecimal digits of a cell or sweep key: 64 bits


@dataclass(frozen=True)
class Sample:
    """One image to decode."""

    sample_id: str
    prompt: Prompt
    image_index: int
    seed: int


@dataclass(frozen=True)
class Chunk:
    """One chunk file: all its samples, of which the first `wanted` are asked for (fewer under a limit)."""

    index: int
    all_samples: tuple[Sample, ...]
    wanted: int

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples asked for."""
        return self.all_samples[: self.wanted]


@dataclass(frozen=True)
class Cell:
    """One configuration and its chunks. `config` is what `key` is the hash of; `card` is that of the target."""

    key: str
    card: Card
    method: SamplerKnobs
    config: Mapping[str, Any]
    chunks: tuple[Chunk, ...]

    @property
    def target(self) -> str:
        """Id of the target."""
        return self.card.target_id

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns (H, W) of the target's grid."""
        return self.card.grid, self.card.grid

    @property
    def image_px(self) -> int:
        """Side of the target's images."""
        return self.card.image_px

    @property
    def knobs(self) -> dict[str, Any]:
        """Knobs that differ from their defaults."""
        return knobs_of(self.method)

    @property
    def label(self) -> str:
        """`tiny-mid mulosd tau=0.2`."""
        return label_of(self.target, self.method.name, knobs=sorted(self.knobs.items()))

    @property
    def n_samples(self) -> int:
        """Images asked for."""
        return sum(chunk.wanted for chunk in self.chunks)


@dataclass(frozen=True)
class Plan:
    """A sweep resolved against prompts and cards. `limit` is the number of prompts, or None for all."""

    sweep: Sweep
    sweep_key: str
    cells: tuple[Cell, ...]
    prompts: tuple[Prompt, ...]
    limit: int | None

    @property
    def n_samples(self) -> int:
        """Images of all cells."""
        return sum(cell.n_samples for cell in self.cells)

    @property
    def cards(self) -> dict[str, Card]:
        """Target id -> card, in the order of the sweep."""
        return {cell.target: cell.card for cell in self.cells}

    def cell(self, cell_key: str) -> Cell:
        """The cell with this key."""
        return next(cell for cell in self.cells if cell.key == cell_key)


def sample_id_of(prompt: Prompt, image_index: int) -> str:
    """`<benchmark>/<prompt_id>/<image_index>`."""
    return f"{prompt.benchmark}/{prompt.prompt_id}/{image_index}"


def seed_of(base_seed: int, sample_id: str) -> int:
    """The seed of a sample: the first 63 bits of sha256 over base seed and id, so it fits int64 >= 0."""
    digest = hashlib.sha256(canonical_json([base_seed, sample_id])).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def key_of(config: Any) -> str:
    """The key of a resolved configuration: sha256 of its canonical JSON, 16 hexadecimal digits."""
    return hashlib.sha256(canonical_json(config)).hexdigest()[:KEY_DIGITS]
