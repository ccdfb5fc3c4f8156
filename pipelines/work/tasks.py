"""What is handed to workers and what comes back: tasks, reports, what an executor is. Values only; no torch, no Ray.

A task names files and settings and is pickled; a report says what was published.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mulosd.errors import ConfigError
from mulosd.methods import SamplerKnobs
from mulosd.stage.manifest import FileEntry
from mulosd.types import Decoded, PromptTokens
from pipelines.plan.cells import Chunk, Sample


class Target(Protocol):
    """What decoding needs of a loaded target."""

    def decode(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        method: SamplerKnobs,
        *,
        frames: bool = False,
        condition: Any = None,
    ) -> list[Decoded]:
        """One image per prompt; condition: what an encoder made of the prompts before, where it has its own stage."""
        ...


@dataclass(frozen=True)
class TargetSpec:
    """How a worker loads a target: `module:attribute` called as loader(target_id, device=..., dtype=...)."""

    loader: str
    target_id: str
    device: str
    dtype: str


@dataclass(frozen=True)
class EncodeTask:
    """Conditions to make and to publish as `path`: (key, prompt, seed or None) each."""

    needs_target: ClassVar[bool] = True

    target: TargetSpec
    items: tuple[tuple[str, str, int | None], ...]
    batch_size: int
    path: str
    is_halved: bool = False

    @property
    def name(self) -> str:
        return f"conditions of {self.target.target_id} {Path(self.path).stem}"


@dataclass(frozen=True)
class EncodeReport:
    """The manifest entry of a published chunk of conditions."""

    entry: FileEntry


@dataclass(frozen=True)
class ConditionSource:
    """Where the conditions of samples are: chunks of one encoder's folder, later ones first in rank."""

    folder: str
    chunks: tuple[tuple[str, FileEntry], ...]
    is_seeded: bool

    @property
    def identity(self) -> str:
        """Of the encoder (`mulosd.families.encoder_facts.EncoderFacts`)."""
        return Path(self.folder).name

    def rows(self, samples: Sequence[Sample]) -> list[dict[str, Any]]:
        """Staged rows of the samples; RuntimeError with the encoder's error where there is none."""
        from mulosd.stage.conditions import read_conditions

        keys = [condition_item(sample, self.is_seeded)[0] for sample in samples]
        found: dict[str, dict[str, Any]] = {}
        for name, entry in self.chunks:
            found |= {row["key"]: row for row in read_conditions(Path(self.folder) / name, entry, keys)}
        for key, sample in zip(keys, samples, strict=True):
            if key not in found or found[key]["error"] is not None:
                reason = found[key]["error"] if key in found else "it was not asked for"
                raise RuntimeError(f"{sample.sample_id} has no condition: {reason}")
        return [found[key] for key in keys]


def condition_item(sample: Sample, is_seeded: bool) -> tuple[str, str, int | None]:
    """(key, prompt, seed or None) of the condition that a sample is decoded under."""
    from mulosd.stage.conditions import condition_key

    seed = sample.seed if is_seeded else None
    return condition_key(sample.prompt.text, seed), sample.prompt.text, seed


@dataclass(frozen=True)
class DecodeTask:
    """One chunk of one cell to decode into `path`. entry: the manifest's entry of a chunk file that is there.

    is_halved: its worker ran out of memory before, so every batch is decoded in two halves. conditions: where those of
    its prompts are staged; None: the target makes them itself. version: of the code that decodes (`code_version`).
    """

    needs_target: ClassVar[bool] = True

    cell_key: str
    label: str
    target: TargetSpec
    method: SamplerKnobs
    chunk: Chunk
    batch_size: int
    path: str
    entry: FileEntry | None = None
    is_halved: bool = False
    conditions: ConditionSource | None = None
    version: str = ""

    @property
    def name(self) -> str:
        return f"{self.label} chunk {self.chunk.index}"


@dataclass(frozen=True)
class ChunkReport:
    """What became of a chunk: its manifest entry, images decoded and kept, failed samples with their error texts.

    losses: (prompt id, what was read of it) of the prompts that the encoder did not read whole.
    """

    entry: FileEntry
    decoded: int
    kept: int
    failures: tuple[tuple[str, str], ...]
    losses: tuple[tuple[str, PromptTokens], ...] = ()


@dataclass(frozen=True)
class EvaluatorSpec:
    """How a worker builds an evaluator: `module:attribute` called as builder(name, **context)."""

    builder: str
    name: str
    context: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ScoreTask:
    """Score the first `rows` rows of a chunk file into the state file `out`."""

    needs_target: ClassVar[bool] = False

    cell_key: str
    label: str
    evaluator: EvaluatorSpec
    index: int
    chunk_path: str
    entry: FileEntry
    rows: int
    out: str

    @property
    def name(self) -> str:
        return f"{self.label} {self.evaluator.name} chunk {self.index}"


@dataclass(frozen=True)
class StateReport:
    """A published state: which rows of which chunk content it rests on, and its digest."""

    name: str
    index: int
    chunk_sha256: str
    rows: int
    sha256: str

    @property
    def basis(self) -> tuple[int, str, int]:
        """What the state was computed from."""
        return (self.index, self.chunk_sha256, self.rows)


# needs_target: whether a worker must hold the target's weights (and its device) to run the task.
Task = DecodeTask | EncodeTask | ScoreTask
Report = ChunkReport | EncodeReport | StateReport


@dataclass(frozen=True)
class Outcome:
    """A finished task and its report."""

    task: Any
    report: Any


class Executor(Protocol):
    """Runs tasks. Use as a context manager, so that workers end."""

    def map(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in completion order."""
        ...

    def close(self) -> None:
        """Release workers and weights."""
        ...

    def describe(self) -> dict[str, Any]:
        """Kind, workers and threads, for the record of a run."""
        ...


def resolve(target: str) -> Any:
    """The attribute that "package.module:attribute" names."""
    module, sign, attribute = target.partition(":")
    if not sign:
        raise ConfigError(f"{target!r} is not an import target; write package.module:attribute.")
    return getattr(import_module(module), attribute)
