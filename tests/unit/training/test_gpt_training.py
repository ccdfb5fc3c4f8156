"""Training of one GPT on the smallest configuration, with a clock that ticks once per step."""

import itertools
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mulosd.models.image_gpt import ImageGPT, tiny_gpt
from mulosd.models.transformer import rope_table
from mulosd.models.vq import VQModel
from mulosd.scenes import vocabulary as voc
from mulosd.scenes.world import sample_scenes
from mulosd.training import gpt, tiny
from mulosd.training.gpt import Progress, init_weights, scene_codes, start_from, train_gpt
from mulosd.training.stages import GPTRecipe
from tests import tiny_family

STEP_SECONDS = 10.0
STEPS = 4
RECIPE = GPTRecipe(minutes=STEPS * STEP_SECONDS / 60, batches=((16, 3),), report_every=2, bf16=False)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family.shrink(monkeypatch)
    tick(monkeypatch)


def tick(patch: pytest.MonkeyPatch, *, stop_after: int | None = None) -> None:
    """Each step takes STEP_SECONDS by the clock; the one after `stop_after` is interrupted."""
    ticks = itertools.count()

    def clock() -> float:
        now = next(ticks)
        if stop_after is not None and now >= 2 * stop_after:
            raise KeyboardInterrupt
        return now * STEP_SECONDS

    patch.setattr(gpt, "time", SimpleNamespace(perf_counter=clock))


def vq() -> VQModel:
    torch.manual_seed(3)
    return VQModel(tiny_family.VQ).eval().requires_grad_(False)


def fresh(name: str = "mid") -> ImageGPT:
    torch.manual_seed(0)
    model = tiny_gpt(tiny.gpt_config(name))
    init_weights(model)
    return model


def test_two_steps_move_the_weights_and_are_counted(tmp_path: Path) -> None:
    model = fresh()
    recipe = replace(RECIPE, minutes=2 * STEP_SECONDS / 60)
    progress = train_gpt(model, vq(), recipe, tmp_path / "mid.pt")
    assert progress == Progress(step=2, seconds=2 * STEP_SECONDS, images=6)
    assert model.output.weight.abs().sum() > 0
    assert all(torch.isfinite(param).all() for param in model.parameters())
    saved = torch.load(tmp_path / "mid.pt", weights_only=True)
    assert saved["progress"] == asdict(progress)
    assert saved["recipe"]["minutes"] == 2 * STEP_SECONDS / 60
    assert list(tmp_path.iterdir()) == [tmp_path / "mid.pt"]
    before = (tmp_path / "mid.pt").read_bytes()
    train_gpt(fresh(), vq(), replace(recipe, minutes=STEP_SECONDS / 60), tmp_path / "mid.pt")
    assert (tmp_path / "mid.pt").read_bytes() == before  # a smaller budget trains nothing and says nothing


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fresh()
    train_gpt(whole, vq(), RECIPE, tmp_path / "whole.pt")

    monkeypatch.setattr(gpt, "CHECKPOINT_SECONDS", 0.0)
    tick(monkeypatch, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        train_gpt(fresh(), vq(), RECIPE, tmp_path / "parts.pt")
    assert torch.load(tmp_path / "parts.pt", weights_only=True)["progress"]["step"] == 2
    tick(monkeypatch)
    resumed = fresh()
    progress = train_gpt(resumed, vq(), RECIPE, tmp_path / "parts.pt")
    assert progress == Progress(STEPS, STEPS * STEP_SECONDS, STEPS * 3)
    for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_finished_checkpoint_is_not_trained_further(tmp_path: Path) -> None:
    train_gpt(fresh(), vq(), RECIPE, tmp_path / "mid.pt")
    model = fresh()
    assert train_gpt(model, vq(), RECIPE, tmp_path / "mid.pt").step == STEPS
    assert torch.equal(
        model.output.weight, torch.load(tmp_path / "mid.pt", weights_only=True)["model"]["output.weight"]
    )


def test_other_seeds_see_other_scenes(tmp_path: Path) -> None:
    outputs = []
    for seed in (0, 1):
        model = fresh()
        train_gpt(model, vq(), replace(RECIPE, seed=seed, minutes=STEP_SECONDS / 60), tmp_path / f"{seed}.pt")
        outputs.append(model.output.weight.detach())
    assert not torch.equal(*outputs)


def test_blocks_start_as_the_identity() -> None:
    model = fresh()
    named = dict(model.named_parameters())
    zero = {name for name, param in named.items() if not param.any()}
    projections = {name for name in named if name.endswith(("wo.weight", "w2.weight"))}
    assert len(projections) == 2 * (2 + 2)  # two blocks of the trunk, two of the text encoder
    axial = {"row_positions", "col_positions"}
    assert zero == projections | axial | {"output.weight"}
    prefix = torch.randn(1, tiny.gpt_config("mid").prefix_len, 32)
    codes = torch.zeros(1, 16, dtype=torch.long)
    assert not model.forward_train(prefix, codes).any()


def test_a_larger_model_starts_with_stretched_positions() -> None:
    """Positions are known at cell centres: new cell i lies at (i + 1/2) / 2 - 1/2 of the old grid."""
    lower, model = fresh("low"), fresh("mid")
    ramp = torch.arange(2.0)[:, None].expand(2, 32)
    with torch.no_grad():
        lower.row_positions.copy_(ramp)
        lower.col_positions.copy_(10 * ramp)
        lower.output.weight.fill_(0.5)
    start_from(model, lower)
    assert model.row_positions[:, 0].tolist() == [0.0, 0.25, 0.75, 1.0]
    assert model.col_positions[:, 5].tolist() == [0.0, 2.5, 7.5, 10.0]
    assert torch.equal(model.output.weight, lower.output.weight)
    assert lower.row_positions.shape == (2, 32)


@pytest.mark.parametrize(("name", "lower"), [("mid", "low"), ("high", "mid")])
def test_rotary_positions_keep_the_relative_layout(name: str, lower: str) -> None:
    """A cell two steps away on the larger grid is rotated like one a step away on the smaller."""
    config, half = tiny.gpt_config(name), tiny.gpt_config(lower)
    assert config.grid == 2 * half.grid

    def image(table: torch.Tensor, grid: int) -> torch.Tensor:
        return table[-grid * grid :].unflatten(0, (grid, grid))

    large, small_table = image(rope_table(config), config.grid), image(rope_table(half), half.grid)
    assert torch.allclose(large[::2, ::2], small_table, atol=1e-6)
    raw = image(rope_table(replace(config, rope_scale=half.rope_scale)), config.grid)
    assert not torch.allclose(raw[::2, ::2], small_table, atol=1e-2)


def test_dropped_conditions_are_the_null_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    model = fresh()
    original = ImageGPT.prefix
    monkeypatch.setattr(
        ImageGPT, "prefix", lambda *args, **options: seen.append(args[1].values) or original(*args, **options)
    )
    recipe = replace(RECIPE, drop_condition=1.0, minutes=STEP_SECONDS / 60)
    train_gpt(model, vq(), recipe, tmp_path / "mid.pt")
    assert (seen[0] == voc.NULL_ID).all()


def test_codes_are_those_of_the_rendered_scenes() -> None:
    tokenizer = vq()
    scenes = sample_scenes("val", 3, 0)
    codes = scene_codes(tokenizer, scenes, 16)
    assert codes.shape == (3, 16)
    assert torch.equal(codes[1:2], scene_codes(tokenizer, scenes[1:2], 16))
    assert gpt.validate(fresh(), tokenizer, 16, count=9)["text_gain"] == 0.0  # an untrained model reads no caption
