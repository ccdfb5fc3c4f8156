"""Evaluators in a sweep: the real registry over staged pictures whose scores are known."""

from pathlib import Path
from typing import Any

import pytest

from dashboards.table import COLUMNS
from evaluators.features.effnet import EffNetLite0Network
from mulosd.prompts import load_prompts
from mulosd.scenes.render import render
from mulosd.scenes.world import scene_from_json
from mulosd.stage.verify import verify_store
from mulosd.types import Decoded, Prompt
from pipelines.plan.sweep import REGISTRY, Sweep, parse_sweep
from pipelines.run.driver import run_sweep
from pipelines.run.progress import Progress
from pipelines.store.results import collect
from pipelines.work.scorers import build_scorer
from tests import fakes

SIDE = 96
PROMPTS = load_prompts({"name": "scenes", "split": "val", "count": 6})


def sweep_of(*evaluators: str) -> Sweep:
    raw = {**fakes.SWEEP, "methods": [{"method": "ar"}], "evaluators": list(evaluators)}
    return parse_sweep(raw, families="tests.fakes")


@pytest.fixture
def perfect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that draws each scene exactly."""
    draw_exactly(PROMPTS, monkeypatch)


def draw_exactly(prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = {prompt.text: render(scene_from_json(prompt.metadata["scene"]), SIDE) for prompt in prompts}

    def decode(self: fakes.FakeTarget, texts: Any, seeds: Any, method: Any, **options: Any) -> list[Decoded]:
        images = [self.one(text, seed, method) for text, seed in zip(texts, seeds, strict=True)]
        for text, image in zip(texts, images, strict=True):
            image.image = pictures[text]
        return images

    monkeypatch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (prompts, "scenes"))
    monkeypatch.setattr(fakes.FakeTarget, "decode", decode)
    monkeypatch.setattr(fakes, "load_card", lambda target: fakes.FakeCard(target, image_px=SIDE))


@pytest.mark.usefixtures("perfect")
def test_perfect_pictures_have_perfect_scores(tmp_path: Path) -> None:
    report = run_sweep(sweep_of("geneval", "detail", "frechet", "speed"), out=tmp_path)
    assert report.scores_done == 5  # the features of the distance are a stage of their own
    (row,) = collect(tmp_path)
    assert row.metrics["geneval/overall"]["value"] == 1.0
    assert row.metrics["geneval/overall"]["n"] == 6
    assert row.metrics["fd_effnet"]["value"] == pytest.approx(0.0, abs=1e-3)
    assert row.metrics["fd_effnet"]["protocol"]["reference"]["image_px"] == SIDE
    assert row.metrics["speed/forwards_per_image"]["value"] == 16
    assert run_sweep(sweep_of("geneval", "detail", "frechet", "speed"), out=tmp_path, dry_run=True).scores_cached == 5
    assert run_sweep(sweep_of("geneval", "detail", "frechet", "speed"), out=tmp_path).scores_cached == 5


@pytest.mark.usefixtures("perfect")
def test_features_are_computed_once_for_all_that_rest_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = EffNetLite0Network.features

    def counted(self: EffNetLite0Network, images: Any) -> Any:
        seen.append(len(images))
        return real(self, images)

    monkeypatch.setattr(EffNetLite0Network, "features", counted)
    shown: list[Progress] = []
    report = run_sweep(sweep_of("frechet", "kid", "precision_recall"), out=tmp_path, progress=shown.append)
    assert seen == [4, 4, 2, 2]  # two chunks: decoded, then references
    assert [(p.cached, p.done, p.total) for p in shown if p.stage == "score"] == [(0, 0, 2), (0, 1, 2), (0, 2, 2)]
    assert (report.scores_done, report.scores_cached) == (4, 0)
    metrics = collect(tmp_path)[0].metrics
    assert {column.needs for column in COLUMNS if "effnet" in column.needs} <= metrics.keys()
    assert (metrics["precision_effnet"]["value"], metrics["recall_effnet"]["value"]) == (1.0, 1.0)
    assert metrics["kid_effnet_full"]["value"] == pytest.approx(0.0, abs=1e-9)
    assert metrics["kid_effnet"]["value"] is None
    assert "needs 100 images" in metrics["kid_effnet"]["reason"]
    assert metrics["fd_effnet"]["n"] == 6
    assert list(verify_store(tmp_path)) == []
    # Another metric on the same features costs no network; a state that is gone is made again.
    (cell,) = (tmp_path / "cells").iterdir()
    for path in cell.glob("scores/kid-*/metrics.json"):
        path.unlink()
    assert run_sweep(sweep_of("frechet", "kid", "precision_recall"), out=tmp_path).scores_done == 1
    assert sum(seen) == 12
    for path in cell.glob("scores/frechet-*/manifest.json"):
        path.write_bytes(b"damaged")
    assert run_sweep(sweep_of("frechet", "kid", "precision_recall"), out=tmp_path).scores_done == 1
    assert list(verify_store(tmp_path)) == []
    for path in cell.glob("scores/features-*/*.safetensors"):
        path.unlink()
    assert run_sweep(sweep_of("frechet", "kid", "precision_recall"), out=tmp_path).scores_done == 1
    assert sum(seen) > 12
    assert collect(tmp_path)[0].metrics["kid_effnet_full"] == metrics["kid_effnet_full"]


def test_prompts_without_scenes_have_no_distance(tmp_path: Path) -> None:
    run_sweep(sweep_of("frechet", "kid", "precision_recall"), out=tmp_path)
    metrics = collect(tmp_path)[0].metrics
    names = {"fd_effnet", "kid_effnet", "kid_effnet_full", "precision_effnet", "recall_effnet"}
    assert set(metrics) == names
    assert {metric["value"] for metric in metrics.values()} == {None}
    assert all("no reference images" in metric["reason"] for metric in metrics.values())


def test_the_reference_is_part_of_the_protocol() -> None:
    small, large = (build_scorer("frechet", registry=REGISTRY, image_px=px, has_scenes=True) for px in (64, 128))
    assert small.protocol() != large.protocol()


def test_dense_prompts_in_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_exactly(load_prompts({"name": "dpg_scenes", "count": 5}), monkeypatch)
    run_sweep(sweep_of("dpg", "detail"), out=tmp_path)
    metrics = collect(tmp_path)[0].metrics
    names = ("overall", "global", "entity", "attribute", "relation", "other")
    assert [metrics[f"dpg/{name}"]["value"] for name in names] == [100.0] * 6
    assert metrics["dpg/overall"]["n"] == 5
    assert metrics["detail/accuracy"]["value"] == 1.0
    assert metrics["dpg/overall"]["protocol"]["vqa"]["name"] == "scenes-vqa"


def test_prompts_without_questions_have_no_dpg(tmp_path: Path) -> None:
    run_sweep(sweep_of("dpg"), out=tmp_path)
    metrics = collect(tmp_path)[0].metrics
    assert {metric["value"] for metric in metrics.values()} == {None}
    assert "carries no questions" in metrics["dpg/overall"]["reason"]
