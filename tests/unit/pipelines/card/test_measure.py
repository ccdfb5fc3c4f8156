"""Measuring a family for its card, on targets whose quality is known: who draws what is decided by the guidance."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dashboards.card import card_markdown
from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.families import card as families
from mulosd.methods import AR, DraftOnly, SamplerKnobs
from mulosd.prompts import load_prompts
from mulosd.scenes.render import render
from mulosd.scenes.world import Scene, scene_from_json
from mulosd.training import tiny
from mulosd.types import Decoded, DecodeStats
from pipelines.card import measure as module
from pipelines.card import measured_family
from pipelines.card.measure import Measurement, estimate, measure
from pipelines.cli.main import cli
from pipelines.plan.build import build_plan
from tests import tiny_family

GOOD = 2.0  # the only guidance under which the fakes draw anything
SIDE = 64


class KnownTarget:
    """`ar` at GOOD draws the scene, `draft-only` at GOOD the scene without patterns; anything else is empty."""

    calls = 0

    def __init__(self, target_id: str, scenes: dict[str, Scene]) -> None:
        self.grid = measured_family.load_card(target_id).grid
        self.scenes = scenes
        # Codes are pixels; decoding makes every pixel two grey levels darker.
        self.vq = SimpleNamespace(encode=lambda image: image, decode=lambda codes: codes - 2 / 127.5)

    def decode(self, prompts: Sequence[str], seeds: Sequence[int], method: SamplerKnobs) -> list[Decoded]:
        assert method.guidance or getattr(method, "draft_guidance", None)
        type(self).calls += len(prompts)
        return [self.one(prompt, method) for prompt in prompts]

    def one(self, prompt: str, method: SamplerKnobs) -> Decoded:
        scene = self.scenes[prompt]
        guidance = method.draft_guidance if isinstance(method, DraftOnly) else method.guidance
        objects = scene.objects if guidance == GOOD else ()
        if isinstance(method, DraftOnly):
            objects = tuple(replace(one, pattern=None) for one in objects)
        tokens = np.zeros((self.grid, self.grid), np.int32)
        image = render(replace(scene, objects=objects), SIDE)
        return Decoded(tokens, image, np.zeros(tokens.shape, np.uint8), DecodeStats(forwards_resample=1))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A published family whose loaded targets are `KnownTarget`s, and a short scan."""
    root = tmp_path_factory.mktemp("published")
    scenes: dict[str, Scene] = {}
    for split in ("val", "test", "heldout"):
        for prompt in load_prompts({"name": "scenes", "split": split, "count": 12, "seed": 0}):
            scenes.setdefault(prompt.text, scene_from_json(prompt.metadata["scene"]))
    with pytest.MonkeyPatch.context() as patch:
        tiny_family.shrink(patch)
        pixels = {name: (model, drafter, SIDE) for name, (model, drafter, _) in tiny.TARGETS.items()}
        patch.setattr(tiny, "TARGETS", pixels)
        tiny.publish(tiny_family.work_folder(root / "work"), root / "family")
        patch.setattr(measured_family, "load_target", lambda target, **_: KnownTarget(target, scenes))
        patch.setattr(module, "SCAN", (1.5, GOOD))
        yield root / "family"


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy of the family that was not measured."""
    return Path(shutil.copytree(published, tmp_path / "family"))


@pytest.fixture(scope="module")
def done(published: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Measurement, dict[str, Any]]:
    """A measured copy of the family and what `measure` returned."""
    root = tmp_path_factory.mktemp("measured")
    what = small(Path(shutil.copytree(published, root / "family")), root)
    return what, measure(what)


def small(folder: Path, root: Path, **changes: int) -> Measurement:
    counts = {"count": 12, "scan_count": 12, "heldout_count": 12} | changes
    return Measurement(folder, root / "store", **counts)


def test_known_targets_get_known_numbers(done: tuple[Measurement, dict[str, Any]]) -> None:
    what, found = done
    card = families.read_family(what.folder)
    assert card["quality"] == json.loads(json.dumps(found))
    assert card["targets"]["tiny-low"]["sampler"] == {**tiny.SAMPLER, "guidance": GOOD}
    assert card["targets"]["tiny-high"]["sampler"] == {**tiny.SAMPLER, "guidance": GOOD, "draft_guidance": GOOD}
    for target in ("tiny-mid", "tiny-high"):
        scored = found["test"][target]
        assert list(scored) == ["ar", "draft-only repeat", "draft-only bicubic"]
        assert scored["ar"]["geneval/overall"]["value"] == 1.0
        assert scored["ar"]["detail/accuracy"]["value"] == 1.0
        assert scored["draft-only bicubic"]["geneval/overall"]["value"] == 1.0
        assert scored["draft-only bicubic"]["detail/accuracy"]["value"] == 0.0
        assert found["vq"][target]["psnr"]["value"] == pytest.approx(42.1, abs=0.05)  # 20 log10(255 / 2)
        assert found["scan"][target]["guidance"]["1.5"]["geneval/overall"]["value"] == 0.0
        heldout = found["heldout"][target]["ar"]
        assert heldout["geneval/overall"]["value"] is None
        assert "single_object" in heldout["geneval/overall"]["reason"]
        assert heldout["geneval/colors"]["value"] == 1.0
        assert "geneval/counting" not in heldout


def test_the_gate_and_where_it_comes_from(done: tuple[Measurement, dict[str, Any]]) -> None:
    """Everything is passed but the number of prompts."""
    what, found = done
    verdicts = {name: verdict["passed"] for name, verdict in found["gate"].items() if name != "passed"}
    assert [name for name, passed in verdicts.items() if not passed] == ["sample_size"]
    assert not found["gate"]["passed"]
    assert found["gate"]["discriminability"]["targets"]["tiny-mid"]["value"] == 1.0
    facts = found["provenance"]
    assert facts["splits"]["test"]["n"] == 12
    assert facts["splits"]["val"]["captions_in_scan"] == facts["splits"]["val"]["captions"]
    assert facts["weights"] == {name: part["sha256"] for name, part in what.raw["parts"].items()}
    assert facts["hardware"][0].endswith(")")


def test_measuring_again_decodes_nothing_and_leaves_the_card_alone(done: tuple[Measurement, dict[str, Any]]) -> None:
    """The presets it wrote do not make its own images look stale."""
    path = done[0].folder / "card.json"
    calls, content, stamp = KnownTarget.calls, path.read_bytes(), path.stat().st_mtime_ns
    measure(replace(done[0]))
    assert KnownTarget.calls == calls > 0
    assert path.read_bytes() == content
    assert path.stat().st_mtime_ns == stamp


def test_the_page_shows_the_cards_numbers_and_nothing_stale(
    published: Path, done: tuple[Measurement, dict[str, Any]]
) -> None:
    assert "**not measured yet**" in card_markdown(families.read_family(published))
    what, found = done
    result = CliRunner().invoke(cli, ["card", "tiny", "--family-folder", str(what.folder)])
    page = result.output
    assert page == card_markdown(what.raw)
    assert quality_text(found["vq"]["tiny-high"]["psnr"]) in page
    assert "**Not passed: sample_size.**" in page
    assert "n >= 900 test prompts |  | 12 | **no** |" in page
    assert "other weights" not in page
    card = what.raw
    card["parts"]["low"]["sha256"] = "0" * 64
    assert "**The numbers below belong to other weights**" in card_markdown(card)


def quality_text(entry: dict[str, Any]) -> str:
    return f"{entry['value']:.2f} [{entry['interval'][0]:.2f}, {entry['interval'][1]:.2f}]"


def test_a_dry_run_says_the_cost_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    options = ["--out", str(tmp_path / "store"), "--family-folder", str(folder)]
    result = CliRunner().invoke(cli, ["measure", "tiny", *options, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "tiny-high: scan 4 cells × 120 images (0 of 480 staged)" in result.output
    assert "nothing was written" in result.output
    assert sorted(tmp_path.rglob("*")) == before
    assert len(list(estimate(small(folder, tmp_path)))) == 5


def test_too_few_prompts_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scan_count = 6 is too small; the smallest allowed value is 12"):
        small(folder, tmp_path, scan_count=6)


def test_a_card_that_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        measure(Measurement(Path("/proc"), tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_guidance_is_no_part_of_the_identity_but_weights_are(folder: Path, tmp_path: Path) -> None:
    def keys() -> list[str]:
        with measured_family.measured(folder):
            return [cell.key for cell in build_plan(small(folder, tmp_path).scan("tiny-mid")).cells]

    before = keys()
    tiny.set_quality(folder, {}, {"tiny-mid": {"guidance": 7.0, "draft_guidance": 7.0}})
    assert keys() == before
    tiny.set_quality(folder, {}, {"tiny-mid": {"top_k": 5}})
    assert keys() != before
    card = json.loads((folder / "card.json").read_text())
    card["targets"]["tiny-mid"]["sampler"]["top_k"] = 0
    card["parts"]["low"]["sha256"] = "0" * 64
    (folder / "card.json").write_text(json.dumps(card))
    assert keys() != before


def test_every_method_names_its_guidance(folder: Path, tmp_path: Path) -> None:
    """The preset a measurement runs on has none."""
    what = small(folder, tmp_path)
    preset = {"guidance": 2.0, "draft_guidance": 3.0}
    with measured_family.measured(folder):
        sweeps = [what.scan("tiny-mid"), what.test("tiny-mid", preset), what.heldout("tiny-mid", preset)]
    methods = [method for sweep in sweeps for method in sweep.methods]
    assert len(methods) == 8
    for method in methods:
        assert isinstance(method, AR | DraftOnly)
        assert (method.draft_guidance if isinstance(method, DraftOnly) else method.guidance) is not None


def test_the_environment_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(measured_family.FOLDER, raising=False)
    with measured_family.measured(tmp_path), pytest.raises(DataError, match="no family card"):
        measured_family.target_ids()
    with pytest.raises(KeyError):
        measured_family.target_ids()
