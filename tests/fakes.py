"""Fakes with a known answer: a family module, an evaluator registry and prompts. No weights, no network.

`tests.fakes` serves as `families` and `registry` module of a sweep (see `SWEEP`), also inside Ray workers, which
see environment variables that were set before Ray started.
"""

import errno
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from evaluators.state import SampleState
from evaluators.types import Metric
from mulosd.files.publish import canonical_json
from mulosd.methods import SamplerKnobs
from mulosd.types import Decoded, DecodeStats, Prompt
from pipelines.plan.sweep import Sweep, parse_sweep

GRID = (4, 4)
STAGED = {"fake-t5": "t5", "fake-llm": "tar-llm"}  # targets with an encoder of their own -> its architecture
FAIL_FILE = "MULOSD_TEST_FAIL_FILE"  # environment variable: a file with texts of prompts whose decoding raises
LOAD_FILE = "MULOSD_TEST_LOAD_FILE"  # a file that gets a line "process target" for every target that is loaded
ENCODE_FILE = "MULOSD_TEST_ENCODE_FILE"  # a file that gets a line for every prompt that is encoded
SLEEP_S = "MULOSD_TEST_SLEEP_S"  # seconds that each decoder call takes
DIE_FILE = "MULOSD_TEST_DIE_FILE"  # a file with texts of prompts whose decoding ends the process, once per line


@dataclass(frozen=True)
class FakeCard:
    target_id: str
    family: str = "fake"
    grid: int = GRID[0]
    codebook_size: int = 64
    draft_grid: int = 2
    drafters: tuple[str, ...] = ("checkpoint",)
    image_px: int = 8
    content_hash: str = "weights-1"
    encoders: dict[str, Any] = field(default_factory=dict)
    condition: dict[str, Any] = field(default_factory=dict)
    prefix_len: int = 4
    num_classes: int | None = None
    sampler: dict[str, float] = field(
        default_factory=lambda: {
            "guidance": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "draft_guidance": 1.0
        }
    )  # fmt: skip
    missing: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def ratio(self) -> int | None:
        return self.grid // self.draft_grid if self.draft_grid else None

    @property
    def raw(self) -> dict[str, Any]:
        part = {"config": {"n_layers": 1, "dim": 4, "grid": self.grid, "prefix_len": self.prefix_len}}
        entry = {"model": "model", "drafter": "drafter"}
        return {"targets": {self.target_id: entry}, "parts": {"model": part, "drafter": part}}


class FakeModel:
    """A forward whose logits are zeros; `calls` keeps (tokens, positions, slots, mask) of each."""

    def __init__(self, grid: int) -> None:
        self.config = SimpleNamespace(num_tokens=grid * grid, grid=grid)
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def new_cache(self, rows: int, *, scratch: int = 0, prefix_len: int | None = None) -> Any:
        import torch

        return SimpleNamespace(kv=torch.zeros(rows, self.config.num_tokens + scratch + 1))

    def __call__(self, tokens: Any, positions: Any, slots: Any, cache: Any, mask: Any) -> Any:
        import torch

        self.calls.append((tokens, positions, slots, mask))
        return torch.zeros(*tokens.shape, 5)


class FakeTarget:
    """Tokens are a hash of (prompt, seed, method): independent of batch, order and executor."""

    def __init__(self, target_id: str) -> None:
        self.target_id = target_id
        self.model, self.drafter = FakeModel(4), FakeModel(2)

    def decode(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        method: SamplerKnobs,
        *,
        frames: bool = False,
        condition: Any = None,
    ) -> list[Decoded]:
        if self.target_id in STAGED:
            assert condition is not None, "a target with an encoder was given no condition"
            prompts = [
                bytes(row[mask].long().tolist()).hex()
                for row, mask in zip(condition.values, condition.mask, strict=True)
            ]
        time.sleep(float(os.environ.get(SLEEP_S, "0")))
        for prompt in prompts:
            _die_if_told(prompt)
            if prompt in _lines(FAIL_FILE):
                raise RuntimeError(f"cannot draw {prompt!r}")
        return [self.one(prompt, seed, method) for prompt, seed in zip(prompts, seeds, strict=True)]

    def one(self, prompt: str, seed: int, method: SamplerKnobs) -> Decoded:
        """The image of one prompt: each token is drawn as a 2×2 block of one colour."""
        digest = hashlib.sha256(canonical_json([self.target_id, prompt, seed, repr(method)])).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        tokens = rng.integers(0, 64, GRID, dtype=np.int32)
        image = np.repeat(np.repeat(tokens[..., None] * np.array([1, 2, 3]), 2, 0), 2, 1).astype(np.uint8)
        num = tokens.size
        forwards = {"ar": num, "draft-only": 4}.get(method.name, 6)
        stats = DecodeStats(forwards_resample=forwards, tokens_fed=num, time_resample_s=forwards * 1e-6)
        if method.name == "mulosd":
            stats = replace(stats, forwards_draft=2, forwards_verify=1, forwards_resample=forwards - 3, drafted=num)
        return Decoded(tokens, image, np.full(GRID, 3, np.uint8), stats)


PADDED = ("prompt 2", "prompt 5")  # those of which an encoder leaves two ids out


class FakeEncoder:
    """One to four ids that spell a hash of the prompt, and of the seed where the target's encoder samples."""

    def __init__(self, target_id: str) -> None:
        self.is_seeded = STAGED[target_id] == "tar-llm"

    def encode(self, prompts: Sequence[str], seeds: Sequence[int]) -> Any:
        import torch

        from mulosd.models.condition import Condition
        from mulosd.text.encoder import Encoded

        for prompt in prompts:
            if prompt in _lines(FAIL_FILE):
                raise RuntimeError(f"cannot read {prompt!r}")
            _die_if_told(prompt)
        if path := os.environ.get(ENCODE_FILE):
            with open(path, "a") as file:
                file.writelines(f"{os.getpid()} {prompt}\n" for prompt in prompts)
        values, mask = torch.zeros(len(prompts), 4, dtype=torch.int64), torch.zeros(len(prompts), 4, dtype=torch.bool)
        for b, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            digest = hashlib.sha256(canonical_json([prompt, seed if self.is_seeded else None])).digest()
            num = 1 + digest[0] % 4
            values[b, 4 - num :] = torch.tensor(list(digest[:num]))
            mask[b, 4 - num :] = True
        return Encoded(Condition(values, mask), tuple(2 * (prompt in PADDED) for prompt in prompts))


class MeanEvaluator:
    """Mean pixel value over images."""

    name = "mean"
    version = "1"
    state = SampleState

    def protocol(self) -> dict[str, Any]:
        return {"pixels": "uint8"}

    def prepare(self) -> None:
        pass

    def score(self, rows: Sequence[Any]) -> SampleState:
        from mulosd.stage.read import image_array

        images = {row["sample_id"]: image_array(row) for row in rows}
        means = {key: None if image is None else float(image.mean()) for key, image in images.items()}
        errors = {row["sample_id"]: row["error"] for row in rows}
        return SampleState({key: {"mean": mean, "error": errors[key]} for key, mean in means.items()})

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        values = {key: record["mean"] for key, record in state.records.items() if record["mean"] is not None}
        mean = float(np.mean(list(values.values()))) if values else None
        missing = len(state.records) - len(values)
        reasons = {key: record["error"] for key, record in state.records.items() if record["mean"] is None}
        counts = (len(values), missing)
        return [Metric("mean", mean, "none", "", *counts, self.version, per_sample=values, missing=reasons)]


def target_ids() -> tuple[str, ...]:
    return ("fake-a", "fake-b", *STAGED)


def load_card(target_id: str) -> FakeCard:
    encoders = {"text": {"architecture": STAGED[target_id], "sha256": "encoder-1"}} if target_id in STAGED else {}
    return FakeCard(target_id, encoders=encoders)


def load_encoder(target_id: str, *, device: str = "cpu", dtype: str = "float32") -> FakeEncoder:
    return FakeEncoder(target_id)


def load_target(target_id: str, *, device: str = "cpu", dtype: str = "float32") -> FakeTarget:
    if path := os.environ.get(LOAD_FILE):
        with open(path, "a") as file:
            file.write(f"{os.getpid()} {target_id}\n")
    return FakeTarget(target_id)


EVALUATORS = {"mean": MeanEvaluator}


def build_evaluator(name: str, **context: Any) -> MeanEvaluator:
    return EVALUATORS[name](**context)


def prompts(num: int = 10) -> list[Prompt]:
    return [Prompt("toy", f"{i:03d}", f"prompt {i}", {"tag": "colors", "index": i}) for i in range(num)]


SWEEP: dict[str, Any] = {
    "name": "toy",
    "target": "fake-a",
    "prompts": {"set": "toy"},
    "methods": [{"method": "ar"}, {"method": "mulosd", "set": {"pool_k": 2}, "grid": {"tau": [0.05, 0.2]}}],
    "evaluators": ["mean"],
    "batch_size": 3,
    "chunk_prompts": 4,
}


def toy_sweep(**changes: Any) -> Sweep:
    """The toy sweep with top-level changes: 3 cells, chunks of 4 prompts."""
    return parse_sweep({**SWEEP, **changes}, families="tests.fakes", registry="tests.fakes")


def without_hard_links(monkeypatch: Any, refusal: int = errno.EPERM) -> None:
    """Behave as a file system that has none."""

    def link(source: Any, target: Any) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "link", link)


def _lines(variable: str) -> list[str]:
    path = os.environ.get(variable)
    return Path(path).read_text().splitlines() if path and Path(path).exists() else []


def _die_if_told(prompt: str) -> None:
    lines = _lines(DIE_FILE)
    if prompt in lines:
        lines.remove(prompt)
        Path(os.environ[DIE_FILE]).write_text("\n".join(lines))
        os._exit(1)
