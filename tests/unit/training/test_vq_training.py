"""Training of the tokenizer: its three phases on the smallest configuration, and the codebook's bookkeeping."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mulosd.models.vq import VQModel
from mulosd.training.vq import EMACodebook, VQRecipe, patch_weight, to_unit, train_vq
from tests import tiny_family

# 24 images of 32 px have 1536 cells; the warm phase keeps 1500 of each batch.
RECIPE = VQRecipe(steps=3, warm_steps=1, batches=((32, 24),), shares=(1.0,))


def trained(recipe: VQRecipe) -> VQModel:
    torch.manual_seed(0)
    model = VQModel(tiny_family.VQ)
    train_vq(model, recipe)
    return model


def test_three_steps_through_all_phases() -> None:
    torch.manual_seed(0)
    before = VQModel(tiny_family.VQ).state_dict()
    model = trained(RECIPE)
    after = model.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    assert {"quantize.embedding.weight", "encoder.conv_in.weight", "decoder.conv_out.weight"} <= moved
    assert torch.allclose(model.quantize.embedding.weight.norm(dim=-1), torch.ones(tiny_family.VQ.codebook_size))


def test_the_seed_decides() -> None:
    first, again, other = trained(RECIPE), trained(RECIPE), trained(replace(RECIPE, seed=1))
    assert torch.equal(first.decoder.conv_out.weight, again.decoder.conv_out.weight)
    assert not torch.equal(first.decoder.conv_out.weight, other.decoder.conv_out.weight)


@pytest.fixture
def book() -> EMACodebook:
    torch.manual_seed(0)
    return EMACodebook(VQModel(tiny_family.VQ), decay=0.5)


def directions(count: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, 4, generator=torch.Generator().manual_seed(1)), dim=-1)


def test_codes_start_at_the_latents(book: EMACodebook) -> None:
    latents = directions(48).repeat(10, 1)
    book.start(latents)
    assert float((latents @ book.weight.T).max(-1).values.mean()) > 0.97


def test_codes_move_towards_their_latents(book: EMACodebook) -> None:
    target = directions(1)
    for _ in range(20):
        book.update(target, torch.tensor([7]), torch.ones(1))
    assert float(book.weight[7] @ target[0]) == pytest.approx(1.0, abs=1e-4)
    assert float(book.weight[7].norm()) == pytest.approx(1.0, abs=1e-6)


def test_starved_codes_restart_at_badly_coded_latents(book: EMACodebook) -> None:
    latents = directions(60)
    book.counts[:] = 10.0
    book.counts[5] = 0.0
    codes = (latents @ F.normalize(book.weight, dim=-1).T).argmax(-1)
    assert book.restart_starved(latents, codes, torch.ones(60)) == 1
    assert any(torch.equal(book.weight[5], latent) for latent in latents)
    assert book.counts[5] == pytest.approx(470 / 48)
    assert book.restart_starved(latents, codes, torch.ones(60)) == 0


def test_flat_patches_weigh_least() -> None:
    image = torch.zeros(1, 3, 8, 8)
    image[:, :, :4, :4] = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    weight = patch_weight(image, 4, 0.15)
    assert weight.shape == (1, 2, 2)
    assert weight.flatten()[1:].tolist() == pytest.approx([0.15] * 3)
    assert float(weight[0, 0, 0]) == 1.0


def test_grey_levels_become_the_unit_range() -> None:
    levels = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    assert to_unit(levels).flatten().tolist() == pytest.approx([-1.0, 1.0, -0.6])
    assert to_unit(levels).shape == (1, 3, 1, 1)
