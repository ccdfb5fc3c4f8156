"""One set of weights on two grids: what is shared, what tells them apart."""

import pytest
import torch
from torch import Tensor

from mulosd.models.image_gpt import ImageGPT, on_grid
from mulosd.scenes import vocabulary as voc
from mulosd.training.gpt import start_from, words_condition
from tests import tiny_family


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family.shrink(monkeypatch)


@pytest.fixture
def model() -> ImageGPT:
    gpt = tiny_family.gpt("multi")
    torch.nn.init.normal_(gpt.row_positions)
    torch.nn.init.normal_(gpt.col_positions)
    return gpt


def logits(model: ImageGPT, caption: str = "a red circle") -> Tensor:
    codes = torch.arange(model.config.num_tokens)[None] % model.config.vocab_size
    return model.forward_train(model.prefix(words_condition([caption]), with_null=False).rows, codes)


def test_a_view_shares_every_parameter(model: ImageGPT) -> None:
    view = on_grid(model, 2)
    own = dict(model.named_parameters())
    assert all(param is own[name] for name, param in view.named_parameters())
    assert view.config.num_tokens == 4
    assert model.config.num_tokens == 16
    logits(view).sum().backward()
    assert model.output.weight.grad is not None


def test_a_frozen_model_stays_frozen(model: ImageGPT) -> None:
    on_grid(model.eval().requires_grad_(False), 2)
    assert not any(param.requires_grad for param in model.parameters())


def test_grids_of_a_family_are_rotated_alike(model: ImageGPT) -> None:
    small = on_grid(model, 2)
    assert model.rope is not None
    assert small.rope is not None
    large = model.rope[model.config.prefix_len :].unflatten(0, (4, 4))
    assert torch.allclose(large[::2, ::2].flatten(0, 1), small.rope[model.config.prefix_len :], atol=1e-6)


def test_each_grid_has_rows_of_its_own(model: ImageGPT) -> None:
    before = logits(model), logits(on_grid(model, 2))
    with torch.no_grad():
        model.row_positions[:2] += 1.0  # rows of the smaller grid
    assert torch.equal(before[0], logits(model))
    assert not torch.equal(before[1], logits(on_grid(model, 2)))


def test_both_forms_of_the_positions_agree(model: ImageGPT) -> None:
    """Training adds a table, decoding indexes the rows."""
    for view in (model, on_grid(model, 2)):
        where = torch.arange(view.config.num_tokens)[None]
        codes = torch.zeros_like(where)
        table = view.position_table(view.config.prefix_len)
        assert table is not None
        assert torch.allclose(view.embed(codes, where, 0), view.tok_embeddings(codes) + table, atol=1e-6)


def test_the_resolution_token_tells_grids_apart_and_outlives_the_null_form(model: ImageGPT) -> None:
    small = on_grid(model, 2)
    condition = words_condition(["a red circle"])
    large_rows, small_rows = (m.prefix(condition, with_null=True) for m in (model, small))
    assert large_rows.rows.shape == (2, voc.MAX_WORDS + 1, 32)
    assert bool(large_rows.mask.all())
    assert large_rows.mask.shape == (2, voc.MAX_WORDS + 1)
    for row in range(2):  # conditional, null
        assert torch.equal(large_rows.rows[row, :-1], small_rows.rows[row, :-1])  # untrained layers mix nothing yet
        assert not torch.equal(large_rows.rows[row, -1], small_rows.rows[row, -1])
    assert torch.equal(large_rows.rows[0, -1], large_rows.rows[1, -1])


def test_it_starts_from_a_model_of_one_grid(model: ImageGPT) -> None:
    lower = tiny_family.gpt("mid", seed=1)
    ramp = torch.arange(4.0)[:, None].expand(4, 32)
    with torch.no_grad():
        lower.row_positions.copy_(ramp)
    words = model.cls_embedding.words.weight[-2:].clone()
    start_from(model, lower)
    assert model.row_positions[:, 0].tolist() == [0.5, 2.5, 0.0, 1.0, 2.0, 3.0]
    assert torch.equal(model.cls_embedding.words.weight[-2:], words)
    assert torch.equal(model.cls_embedding.words.weight[:-2], lower.cls_embedding.words.weight)
    assert torch.equal(model.output.weight, lower.output.weight)


def test_a_grid_that_it_was_not_made_for_is_a_bug(model: ImageGPT) -> None:
    with pytest.raises(ValueError, match="not in"):
        on_grid(model, 3)
