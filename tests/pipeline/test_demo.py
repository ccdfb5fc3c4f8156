"""`mulosd demo` on fakes: all parts the first time, nothing but looking the second time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mulosd.methods import SamplerKnobs, build_method
from mulosd.types import Decoded
from pipelines.cli import demo
from pipelines.cli.single import parse_knobs
from pipelines.tracking.track import SweepMeta, Tracked
from tests.fakes import FakeCard, FakeTarget, toy_sweep


class AnimatedTarget(FakeTarget):
    """Keeps one snapshot per row, and turns codes into grey levels."""

    def decode(
        self, prompts: Sequence[str], seeds: Sequence[int], method: SamplerKnobs, *, frames: bool = False
    ) -> list[Decoded]:
        done = super().decode(prompts, seeds, method)
        rows = np.arange(4)[:, None]
        return [replace(d, frames=[np.where(rows <= i, d.tokens, -1) for i in range(4)]) for d in done]

    def detokenize(self, tokens: np.ndarray) -> np.ndarray:
        assert (tokens >= 0).all()
        return np.repeat(tokens[..., None], 3, axis=2).astype(np.uint8)


def resolve_fake(out: Path, suffix: str, *, target: str, method: str, knobs: Any, dtype: str) -> Any:
    """What the checks give for a target that no card describes."""
    return build_method(method, parse_knobs(knobs)), FakeCard(target)


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> list[SweepMeta]:
    """The toy sweep instead of the shipped one, the fake target, and a record of what would go to MLflow."""
    seen: list[SweepMeta] = []

    def keep(rows: Any, meta: SweepMeta, **_: Any) -> Tracked:
        seen.append(meta)
        return Tracked("uri", "run", len(rows), 0)

    monkeypatch.setattr("pipelines.tracking.track.track_sweep", keep)
    monkeypatch.setattr(demo, "find_sweep", lambda name: Path(name))
    monkeypatch.setattr(demo, "load_sweep", lambda path: toy_sweep(bench={"prompts": 2, "warmup": 1}))
    monkeypatch.setattr("pipelines.cli.single.resolve", resolve_fake)
    monkeypatch.setattr("pipelines.cli.single.load_target", lambda target, **_: AnimatedTarget(target))
    return seen


def test_demo_shows_everything_and_repeats_from_cache(tmp_path: Path, tracked: list[SweepMeta]) -> None:
    said: list[str] = []
    demo.run_demo(tmp_path, executor="inprocess", echo=said.append)
    text = "\n".join(said)
    for part in ("| method |", "contact_sheet.png", "decode.gif", f"mulosd ui {tmp_path}", "measuring latency"):
        assert part in text
    assert "Latency: one bench run" in text
    assert "done:" in said[-1]
    assert set(tracked[0].texts) == {"table.md", "table.csv", "table.tex"}
    assert [path.name for path in tracked[0].files] == ["contact_sheet.png", "rows.json"]
    assert tracked[0].facts["mulosd.sweep"] == "toy"

    again: list[str] = []
    demo.run_demo(tmp_path, executor="inprocess", echo=again.append)
    assert "everything was cached" in again[-1]
    assert "measuring" not in "\n".join(again)


def test_committed_tables_are_shown(tmp_path: Path, tracked: list[SweepMeta], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny-high.md").write_text("# A larger run\n\nProse.\n\n| larger run |\n|:--|\n\n| a later table |\n")
    monkeypatch.setattr("pipelines.plan.shipped.RESULTS", tmp_path)
    said: list[str] = []
    demo.run_demo(tmp_path / "store", executor="inprocess", echo=said.append)
    assert any("A larger run (docs/results/tiny-high.md)" in line for line in said)
    assert "| larger run |\n|:--|\n" in said
    assert not any("later table" in line for line in said)
