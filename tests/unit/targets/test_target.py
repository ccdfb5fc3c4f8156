"""The one door to a loaded target: every method decodes, what cannot run is refused, undecided cells are grey."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mulosd.decoding.engine import Engine
from mulosd.decoding.wavefront import Worklist, fill
from mulosd.errors import ConfigError, DecodingFailed, EnvironmentProblem
from mulosd.families.card import Card
from mulosd.methods import AR, METHODS, DraftOnly, MuLoSD, SamplerKnobs, ZipAR, build_method
from mulosd.models.image_gpt import on_grid
from mulosd.targets import load_target, loading
from mulosd.targets import target as target_module
from mulosd.targets.target import Target, to_uint8
from mulosd.training import tiny
from mulosd.types import Decoded
from mulosd.upsample.token import Repeat
from pipelines.card.vq_quality import reconstruct
from tests import tiny_family

PROMPT = "a photo of a red circle"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("family")
    with pytest.MonkeyPatch.context() as patch:
        tiny_family.shrink(patch)
        tiny.publish(tiny_family.work_folder(root / "work"), root / "family")
    return root / "family"


@pytest.fixture(scope="module")
def high(folder: Path) -> Target:
    return load_target("tiny-high", dtype="float64", folder=folder)


@pytest.fixture(scope="module")
def low(folder: Path) -> Target:
    return load_target("tiny-low", folder=folder)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_draws_an_image(high: Target, name: str) -> None:
    (decoded,) = high.decode([PROMPT], [7], build_method(name))
    assert decoded.tokens.shape == decoded.status.shape == (8, 8)
    assert decoded.tokens.dtype == np.int32
    assert decoded.image.shape == (32, 32, 3)
    assert decoded.image.dtype == np.uint8
    assert decoded.tokens.min() >= 0
    assert decoded.tokens.max() < high.card.codebook_size
    assert decoded.stats.forwards > 0
    assert decoded.stats.time_condition_s > 0
    assert decoded.stats.time_detokenize_s > 0
    assert decoded.stats.peak_mib > 0


@pytest.mark.parametrize("method", [AR(), ZipAR(window=2), DraftOnly(upsampler="repeat"), MuLoSD(tau=0.05)])
def test_an_image_depends_on_prompt_seed_and_method_alone(high: Target, method: SamplerKnobs) -> None:
    alone = high.decode([PROMPT], [7], method)[0]
    batch = high.decode(["two crosses", PROMPT], [1, 7], method)
    assert np.array_equal(batch[1].tokens, alone.tokens)
    assert not np.array_equal(batch[0].tokens, alone.tokens)
    assert not np.array_equal(high.decode([PROMPT], [8], method)[0].tokens, alone.tokens)


def test_knobs_left_out_are_the_cards_preset(high: Target) -> None:
    preset = high.card.sampler
    explicit = AR(**{key: preset[key] for key in ("guidance", "temperature", "top_k", "top_p")})
    tokens = high.decode([PROMPT], [7], AR())[0].tokens
    assert np.array_equal(high.decode([PROMPT], [7], explicit)[0].tokens, tokens)
    assert not np.array_equal(high.decode([PROMPT], [7], AR(guidance=30.0))[0].tokens, tokens)


def test_the_drafters_guidance_is_its_own(high: Target) -> None:
    preset = high.decode([PROMPT], [7], DraftOnly(upsampler="repeat"))[0].tokens
    same = DraftOnly(upsampler="repeat", draft_guidance=high.card.sampler["draft_guidance"], guidance=30.0)
    assert np.array_equal(high.decode([PROMPT], [7], same)[0].tokens, preset)
    drafts = [high.decode([PROMPT], [s], DraftOnly(upsampler="repeat", draft_guidance=30.0))[0] for s in range(4)]
    preset_drafts = [high.decode([PROMPT], [s], DraftOnly(upsampler="repeat"))[0] for s in range(4)]
    assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(drafts, preset_drafts, strict=True))


def test_knobs_of_guidance_reach_the_samplers(high: Target) -> None:
    """cfg_interval counts cells of the target, so it is none of the drafter's."""
    condition = high._placed(high._encoder.encode([PROMPT], [1]).condition)
    job = high._job(condition, [1], MuLoSD(cfg_interval=3, logits_dtype="model"), None)
    assert (job.sampler.cfg_interval, job.draft_sampler.cfg_interval) == (3, -1)
    assert (job.sampler.logits_dtype, job.draft_sampler.logits_dtype) == ("model", "model")


def test_frames_end_with_the_image(high: Target) -> None:
    (decoded,) = high.decode([PROMPT], [7], AR(), frames=True)
    assert np.array_equal(decoded.frames[-1], decoded.tokens)
    undecided = [int((frame < 0).sum()) for frame in decoded.frames]
    assert undecided == sorted(undecided, reverse=True)
    assert high.decode([PROMPT], [7], AR())[0].frames == []


@pytest.fixture
def multi(folder: Path) -> Target:
    return load_target("tiny-multi", dtype="float64", folder=folder)


def test_self_drafting_loads_no_second_checkpoint(multi: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_part(card: Card, name: str, dtype: torch.dtype) -> None:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr(loading, "load_part", load_part)
    decoded = multi.decode([PROMPT], [7], MuLoSD(drafter="self", tau=0.0, upsampler="repeat"))[0]
    draft = multi.decode([PROMPT], [7], DraftOnly(drafter="self", upsampler="repeat"))[0]
    assert np.array_equal(decoded.tokens, draft.tokens)
    multi.decode([PROMPT], [7], AR())
    with pytest.raises(AssertionError, match="low was loaded"):
        multi.decode([PROMPT], [7], DraftOnly())


def test_the_self_drafter_is_the_target_on_the_draft_grid(multi: Target) -> None:
    """Its draft is what AR decoding of that model draws from the drafter's noise."""
    small = Target(multi.card, multi.vq, on_grid(multi.model, 2), None)
    job = small._job(
        small._placed(small._encoder.encode([PROMPT], [7]).condition),
        [7],
        AR(guidance=multi.card.sampler["draft_guidance"]),
        None,
    )
    engine = Engine(small.model, job.condition, job.seeds, job.sampler, job.stats, stream="draft")
    fill(engine, [Worklist(np.ones((2, 2), np.int64), 2, first_row_serial=True)], "draft")
    draft = multi.decode([PROMPT], [7], DraftOnly(drafter="self", upsampler="repeat", draft_window=2))[0]
    assert np.array_equal(draft.tokens, np.kron(engine.tokens.reshape(2, 2), np.ones((2, 2), int)))


@pytest.mark.parametrize("method", [DraftOnly(drafter="self"), MuLoSD(drafter="self")])
def test_a_model_of_one_grid_does_not_draft_for_itself(high: Target, method: SamplerKnobs) -> None:
    with pytest.raises(ConfigError, match="the model of tiny-high was not trained on its draft grid too"):
        high.check(method)


@pytest.mark.parametrize("method", [DraftOnly(), MuLoSD()])
def test_a_target_without_a_drafter_refuses_drafts(low: Target, method: SamplerKnobs) -> None:
    with pytest.raises(ConfigError, match=f"tiny-low has no drafter, so method '{method.name}' cannot run; use a"):
        low.decode([PROMPT], [0], method)
    low.check(AR())
    low.check(ZipAR())


def test_more_neighbours_than_codes_are_refused(high: Target) -> None:
    codes = high.card.codebook_size
    high.check(MuLoSD(pool_k=codes))
    with pytest.raises(ConfigError, match=f"mulosd.pool_k = {codes + 1} exceeds the {codes} codes of tiny-high"):
        high.check(MuLoSD(pool_k=codes + 1))


def test_neighbours_are_those_of_unit_codes(folder: Path) -> None:
    """Code vectors of any length: the tokenizer compares their directions, and so does the pool."""
    target = load_target("tiny-high", folder=folder)
    with torch.no_grad():
        target.vq.quantize.embedding.weight.mul_(torch.linspace(0.1, 9.0, target.card.codebook_size)[:, None])
    unit = torch.nn.functional.normalize(target.vq.quantize.embedding.weight.double(), dim=1)
    table = Target(target.card, target.vq, target.model, None)._neighbours(5)
    by_distance = torch.cdist(unit, unit).fill_diagonal_(-1).argsort(dim=1)
    assert torch.equal(table.long(), by_distance[:, :5])


def test_each_network_is_built_once(high: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """An up-sampler is known by its name and file: another file is another network."""
    built: list[tuple[str, str | None]] = []

    def build(name: str, *, sr_model: str | None, **_: object) -> Callable[[Tensor, int], Tensor]:
        built.append((name, sr_model))
        return Repeat(high.card.ratio or 0)

    monkeypatch.setattr(target_module, "build_upsampler", build)
    fresh = Target(high.card, high.vq, high.model, lambda: high.drafter)
    for sr_model in ("a.pth", "b.pth", "a.pth"):
        fresh.decode([PROMPT], [7], DraftOnly(upsampler="sr", sr_model=sr_model))
    fresh.decode([PROMPT], [7], DraftOnly(upsampler="repeat"))
    assert built == [("sr", "a.pth"), ("sr", "b.pth"), ("repeat", None)]


def test_a_seed_is_missing(high: Target) -> None:
    with pytest.raises(ValueError, match="1 prompts but 2 seeds"):
        high.decode([PROMPT], [0, 1], AR())


def test_detokenize_draws_the_decoded_image(high: Target) -> None:
    (decoded,) = high.decode([PROMPT], [7], AR())
    assert np.array_equal(high.detokenize(decoded.tokens), decoded.image)


def test_undecided_cells_are_grey(high: Target) -> None:
    tokens = high.decode([PROMPT], [7], AR())[0].tokens.copy()
    tokens[1, 2] = -1
    image = high.detokenize(tokens)
    assert (image[4:8, 8:12] == 128).all()
    rest = np.ones((32, 32), bool)
    rest[4:8, 8:12] = False
    assert (image[rest] != 128).any()
    assert tokens[1, 2] == -1


def test_pixels_are_clamped_and_rounded_as_documented() -> None:
    pixels = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]).expand(1, 3, 1, 6)
    assert to_uint8(pixels)[0, 0, :, 0].tolist() == [0, 0, 128, 191, 255, 255]
    assert to_uint8(pixels).shape == (1, 1, 6, 3)
    assert to_uint8(pixels, "down")[0, 0, :, 0].tolist() == [0, 0, 127, 191, 255, 255]


def test_pixels_are_rounded_as_the_card_says(high: Target) -> None:
    """Tar cuts off where LlamaGen rounds, so that no byte is larger and some are smaller by one."""
    rounded = high.decode([PROMPT], [7], AR())[0]
    target = {**high.card.raw["targets"]["tiny-high"], "pixel_rounding": "down"}
    card = replace(high.card, raw={**high.card.raw, "targets": {"tiny-high": target}})
    other = Target(card, high.vq, high.model, None)
    cut = other.decode([PROMPT], [7], AR())[0]
    assert np.array_equal(cut.tokens, rounded.tokens)
    lost = rounded.image.astype(int) - cut.image
    assert set(np.unique(lost)) == {0, 1}
    assert 0 < lost.mean() < 1
    assert np.array_equal(other.detokenize(cut.tokens), cut.image)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_targets_decode(folder: Path, dtype: str) -> None:
    target = load_target("tiny-high", dtype=dtype, folder=folder)
    assert {p.dtype for p in target.model.parameters()} == {getattr(torch, dtype)}
    decoded = target.decode(["a red circle"], [1], MuLoSD())[0]
    assert decoded.image.shape == (32, 32, 3)
    assert len(np.unique(decoded.tokens)) > 1


def test_unknown_dtypes_and_absent_devices_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown dtype 'float46'"):
        load_target("tiny-low", dtype="float46", folder=folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentProblem, match="torch sees no CUDA device; use --device cpu"):
        load_target("tiny-low", device="cuda", folder=folder)


def test_an_image_that_is_not_finite_fails_and_its_neighbours_do_not(
    high: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, seeds = [PROMPT, "two crosses", PROMPT], [7, 1, 8]
    whole = high.decode(prompts, seeds, AR())
    real = high.vq.decode

    def broken(codes: Tensor) -> Tensor:
        pixels = real(codes)
        pixels[1, 2, 3, 4] = torch.inf
        return pixels

    monkeypatch.setattr(high.vq, "decode", broken)
    with pytest.raises(DecodingFailed) as caught:
        high.decode(prompts, seeds, AR())
    reason = "the decoded pixels are not finite (NaN or infinite) in float64"
    assert str(caught.value) == f"tiny-high: 1 of 3 images failed: {reason}."
    assert caught.value.results[1] == reason
    for image in (0, 2):
        found = caught.value.results[image]
        assert isinstance(found, Decoded)
        assert np.array_equal(found.image, whole[image].image)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_overflow_of_float16_says_what_to_do(folder: Path) -> None:
    target = load_target("tiny-high", dtype="float16", folder=folder)
    target.model.output.weight.data.mul_(1e5)
    for method in (AR(), DraftOnly(drafter="checkpoint", upsampler="repeat"), MuLoSD(upsampler="repeat")):
        if method.name == "draft-only":
            target.drafter.output.weight.data.mul_(1e5)  # type: ignore[union-attr]
        with pytest.raises(DecodingFailed, match=r"not finite .* in float16; decode in bfloat16 or float32"):
            target.decode([PROMPT], [7], method)
    with pytest.raises(DecodingFailed, match="the target's logits are not finite"):
        target.first_codes([PROMPT], [7])


def test_pixels_that_are_not_finite_are_never_drawn(high: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for an animation or the quality on a card: they would be black."""
    real = high.vq.decode
    monkeypatch.setattr(high.vq, "decode", lambda codes: real(codes) * torch.nan)
    with pytest.raises(DecodingFailed, match="the decoded pixels are not finite"):
        high.detokenize(np.zeros((8, 8), np.int64))
    with pytest.raises(DecodingFailed, match="the decoded pixels are not finite"):
        reconstruct(high.vq.float(), np.zeros((1, 32, 32, 3), np.uint8), device="cpu")
    high.vq.double()
