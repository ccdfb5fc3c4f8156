"""Training of the latent up-sampler on a throw-away family: losses, resume, refusals, card and command."""

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from mulosd.errors import ConfigError, EnvironmentProblem
from mulosd.families.latent_card import LatentCard
from mulosd.models.vq import VQModel
from mulosd.scenes.world import sample_scenes
from mulosd.targets import load_target
from mulosd.training import tiny, upsampler, upsampler_losses
from mulosd.training.upsampler import UpsamplerRecipe
from mulosd.training.upsampler_losses import Perceptual, build_perceptual
from mulosd.upsample.latent import LatentConfig, LatentNet
from pipelines.cli.train import upsampler as command
from tests import tiny_family

PLAIN = Perceptual(lambda made, true: (made - true).abs().mean(), {"trunk": "none"})
SECONDS = 1 / 60  # of a minute: one step under the fixture's clock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A family of 8, 16 and 32 pixels with random weights."""
    place = tmp_path_factory.mktemp("family")
    with pytest.MonkeyPatch.context() as patch:
        tiny_family.shrink(patch)
        tiny.publish(tiny_family.work_folder(place / "work"), place)
        yield place


@pytest.fixture
def vq(folder: Path) -> VQModel:
    return load_target("tiny-low", folder=folder).vq


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(upsampler, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A perceptual distance that costs nothing, under the default's name."""
    monkeypatch.setitem(upsampler_losses.PERCEPTUAL, "effnet-lite0", lambda: PLAIN)


def target_recipe(folder: Path, loss: str, ratio: int = 2, **changes: Any) -> upsampler.TargetRecipe:
    return upsampler.recipe_for("tiny", ratio, loss, folder=folder, **changes)


def train(folder: Path, out: Path, loss: str, steps: int, **changes: Any) -> LatentCard:
    card, recipe = target_recipe(folder, loss, minutes=steps * SECONDS, **changes)
    return upsampler.main(out, replace(recipe, batch=2), card)


def weights_of(latent: LatentCard) -> dict[str, torch.Tensor]:
    return load_file(latent.weights)


def same(a: LatentCard, b: LatentCard) -> bool:
    other = weights_of(b)
    return all(torch.equal(value, other[key]) for key, value in weights_of(a).items())


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("loss", upsampler.LOSSES)
def test_every_loss_trains_and_publishes(folder: Path, tmp_path: Path, loss: str) -> None:
    latent = train(folder, tmp_path, loss, 4)
    assert latent.path.name == f"latent-{loss}-2x.json"
    assert latent.raw["trained"] == {"step": 4, "seconds": 4.0, "images": 8}
    assert latent.raw["perceptual"] == (None if loss == "ce" else PLAIN.identity)
    tokenizer = json.loads((folder / "card.json").read_text())["parts"]["vq"]["sha256"]
    assert latent.raw["recipe"]["tokenizer_sha256"] == tokenizer
    state = weights_of(latent)
    assert {value.dtype for value in state.values()} == {torch.float16}
    assert all(torch.isfinite(value).all() for value in state.values())
    assert state["conv_out.weight"].abs().sum() > 0  # zero before the first step


@pytest.mark.usefixtures("clock")
def test_losses_and_seeds_give_different_networks(folder: Path, tmp_path: Path) -> None:
    first = train(folder, tmp_path / "a", "pixel", 3)
    assert same(first, train(folder, tmp_path / "b", "pixel", 3))
    assert not same(first, train(folder, tmp_path / "c", "pixel", 3, seed=1))
    # The critic's loss counts from half of the budget on, that is in the third step.
    assert not same(first, train(folder, tmp_path / "d", "gan", 3))
    assert same(first, train(folder, tmp_path / "e", "gan", 3, warm_share=1.0))


@pytest.mark.usefixtures("clock")
def test_more_minutes_resume_and_the_same_do_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    make_pair = upsampler.make_pair
    monkeypatch.setattr(upsampler, "make_pair", lambda *args: drawn.append(1) or make_pair(*args))
    first = train(folder, tmp_path, "gan", 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {f"latent-gan-2x.{ending}" for ending in ("pt", "safetensors", "json")}
    assert same(first, train(folder, tmp_path, "gan", 2))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(drawn) == 2
    assert train(folder, tmp_path, "gan", 5).raw["trained"]["step"] == 5
    assert len(drawn) == 5


def test_a_resumed_run_is_the_uninterrupted_one(folder: Path, vq: VQModel, tmp_path: Path) -> None:
    """With one budget and a kill in between: same scenes, same optimiser state, same weights."""
    _, recipe = target_recipe(folder, "gan", minutes=4 * SECONDS)
    recipe = replace(recipe, batch=2)

    def run(checkpoint: Path, dies_at: int | None) -> LatentNet:
        ticks = itertools.count()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upsampler, "CHECKPOINT_SECONDS", 0.5)
            patch.setattr(upsampler, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
            torch.manual_seed(0)
            trainee = upsampler.new_trainee(LatentNet(LatentConfig(2, 4, width=8, blocks=1, fine_width=8)), recipe)

            def report(progress: Any, _: float) -> None:
                if progress.step == dies_at:
                    raise KeyboardInterrupt

            upsampler.train_upsampler(trainee, vq, recipe, PLAIN, checkpoint, report=report)
            return trainee.net

    whole = run(tmp_path / "whole.pt", None).state_dict()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed.pt", 3)
    assert torch.load(tmp_path / "killed.pt", weights_only=True)["progress"]["step"] == 2
    resumed = run(tmp_path / "killed.pt", None).state_dict()
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())


@pytest.mark.usefixtures("clock")
def test_a_checkpoint_of_another_recipe_or_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    train(folder, tmp_path, "ce", 1)
    with pytest.raises(ConfigError, match=r"trained with seed = 0, now 3 is asked for; choose another --out"):
        train(folder, tmp_path, "ce", 1, seed=3)
    card, recipe = target_recipe(folder, "ce")
    with pytest.raises(ConfigError, match="trained with tokenizer_sha256"):
        upsampler.main(tmp_path, replace(recipe, batch=2, tokenizer_sha256="0" * 64), card)


@pytest.mark.parametrize("loss", ["ce", "pixel"])
def test_training_lowers_the_loss(folder: Path, vq: VQModel, tmp_path: Path, loss: str) -> None:
    """Twenty steps on one fixed pair; the decoder is random, so there is little to gain."""
    _, recipe = target_recipe(folder, loss)
    recipe = replace(recipe, batch=4, rate=5e-3)
    torch.manual_seed(0)
    trainee = upsampler.new_trainee(LatentNet(LatentConfig(2, 4, width=16, blocks=1, fine_width=8)), recipe)
    pair = upsampler.make_pair(vq, sample_scenes("val", 4, 0), recipe)
    perceptual = None if loss == "ce" else PLAIN
    losses = [upsampler._step(trainee, vq, recipe, perceptual, pair, is_adversarial=False) for _ in range(20)]
    assert min(losses[-3:]) < 0.98 * losses[0]


def test_straight_through_shows_codes_and_passes_gradients(vq: VQModel) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(1, 4, 2, 2), dim=1).requires_grad_()
    made = upsampler.decode_straight_through(vq, vectors)
    assert torch.allclose(made, vq.decode(vq.quantize.nearest(vectors)), atol=1e-4)
    made.square().sum().backward()  # type: ignore[no-untyped-call]
    assert vectors.grad is not None
    assert vectors.grad.abs().sum() > 0


def test_the_rate_warms_up_and_decays() -> None:
    assert upsampler.rate_scale(0, 0.0, 0.5) == pytest.approx(1 / 30)
    assert upsampler.rate_scale(100, 0.4, 0.5) == 1.0
    assert upsampler.rate_scale(100, 0.75, 0.5) == pytest.approx(0.5)
    assert upsampler.rate_scale(100, 1.0, 0.5) == 0.02


def test_recipes_are_checked(folder: Path) -> None:
    card, recipe = target_recipe(folder, "gan", 4)
    assert (card.target_id, recipe.low_px, recipe.high_px, recipe.batch) == ("tiny-high", 8, 32, 4)
    with pytest.raises(ConfigError, match=r"unknown up-sampler loss 'gann'.*Did you mean 'gan'"):
        target_recipe(folder, "gann")
    with pytest.raises(ConfigError, match=r"no target of tiny has that ratio.*2 \(tiny-mid\), 4 \(tiny-high\)"):
        target_recipe(folder, "gan", 3)
    with pytest.raises(ConfigError, match="is not a multiple of low_px"):
        UpsamplerRecipe("ce", "0", 32, 48, 2)


def test_the_trunk_grades_damage() -> None:
    distance = upsampler_losses.perceptual_effnet().distance
    image = upsampler.to_unit(torch.randint(256, (2, 64, 64, 3), generator=torch.Generator().manual_seed(0)).byte())
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(1))
    assert distance(image, image) == 0
    assert 0 < distance(image + 0.05 * noise, image) < distance(image + 0.5 * noise, image)


def test_the_critic_learns_to_tell() -> None:
    true, made = torch.tensor([2.0, 1.5]), torch.tensor([-3.0, -1.0])
    assert upsampler_losses.critic_loss(true, made) == 0
    assert upsampler_losses.critic_loss(made, true) > upsampler_losses.critic_loss(true, true)


def test_perceptual_distances_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown perceptual distance 'lpip'.*Did you mean 'lpips'"):
        build_perceptual("lpip")
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(EnvironmentProblem, match="pip install lpips"):
        build_perceptual("lpips")


class FakeLPIPS(torch.nn.Module):
    def __init__(self, *, net: str, verbose: bool) -> None:
        super().__init__()

    def forward(self, made: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        return (made - true).square().mean((1, 2, 3), keepdim=True)


def test_the_real_lpips_is_selectable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=FakeLPIPS))
    chosen = build_perceptual("lpips")
    assert chosen.identity["trunk"].startswith("lpips")
    assert chosen.distance(torch.ones(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)) == 1

    def offline(**_: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=offline))
    with pytest.raises(EnvironmentProblem, match=r"not in torch's cache and cannot be downloaded \(no route to host\)"):
        build_perceptual("lpips")


@pytest.mark.usefixtures("clock")
def test_the_command_trains_measures_and_continues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.card import upsampler_quality

    monkeypatch.setattr(upsampler_quality, "COUNT", 6)
    arguments = ["--family-folder", str(folder), "--ratio", "4", "--loss", "pixel", "--out", str(tmp_path), "--quiet"]
    arguments += ["--minutes", str(2 * SECONDS)]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "latent-pixel-4x.json" in done.output
    quality = json.loads((tmp_path / "latent-pixel-4x.json").read_text())["quality"]
    assert quality["prompts"] == {"name": "scenes", "split": "val", "count": 6, "seed": 0}
    assert quality["true_codes"]["token_agreement"] == {"value": 1.0, "n": 6 * 64}
    assert quality["upsampler"]["token_agreement"]["value"] < 1.0
    for name in ("upsampler", "bicubic", "true_codes"):
        assert quality[name]["geneval/overall"]["n"] == 6
        assert quality[name]["psnr"]["n"] == 6
    before = (tmp_path / "latent-pixel-4x.json").read_bytes()
    monkeypatch.setattr(upsampler_quality, "measure_upsampler", None)  # measured already: not called
    CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert (tmp_path / "latent-pixel-4x.json").read_bytes() == before
