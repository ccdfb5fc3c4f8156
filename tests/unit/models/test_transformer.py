"""The trunk and its position-addressed forward on its own: cuts, slots, masks, positions, dtypes, layouts."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from mulosd.models.ar_dtok import ARDTok
from mulosd.models.condition import Condition
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, llamagen_t2i, tiny_gpt
from mulosd.models.kv_cache import VIRTUAL_KEYS, KVCache, log_count
from mulosd.models.transformer import RMSNorm, Transformer, rope_table, running_mean
from mulosd.scenes import vocabulary as voc

CONFIG: dict[str, Any] = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "vocab_size": 24,
    "grid": 4,
    "prefix_len": 5,
    "ffn_dim": 24,
}
TOKENS = torch.randint(24, (2, 16), generator=torch.Generator().manual_seed(0))
LAYOUTS = ["llamagen", "llamagen-plain", "ar-dtok", "tiny"]  # plain: every prefix row in the cache


def build(layout: str, **changes: Any) -> ImageGPT | ARDTok:
    torch.manual_seed(0)
    if layout.startswith("llamagen"):
        model: ImageGPT | ARDTok = llamagen_t2i(GPTConfig(**{**CONFIG, **changes}), 6)
        model.cls_embedding.uncond_embedding.normal_()
        model.collapses_prefix = layout == "llamagen"
    elif layout == "ar-dtok":
        model = ARDTok(GPTConfig(**{**CONFIG, "positions": "learned", "logits_dtype": "model", **changes}), 6)
    else:
        tiny = {"prefix_attention": "identity", "axial_positions": True, "prefix_len": voc.MAX_WORDS, **changes}
        model = tiny_gpt(GPTConfig(**{**CONFIG, **tiny}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4 if weight.ndim > 1 else 1.0)
    return model.double().eval().requires_grad_(False)


def condition(model: ImageGPT | ARDTok, *, padded: bool = False) -> Condition:
    T = model.config.prefix_len
    mask = torch.ones(2, T, dtype=torch.bool)
    if padded:
        mask[0, :3] = False
    if isinstance(model, ARDTok) or "cap_proj" in dict(model.cls_embedding.named_children()):
        return Condition(torch.randn(2, T, 6, generator=torch.Generator().manual_seed(1)).double(), mask)
    return Condition(torch.randint(3, voc.NUM_WORD_IDS, (2, T), generator=torch.Generator().manual_seed(1)), mask)


def run(
    model: ImageGPT | ARDTok, cuts: list[list[int]], *, slots: dict[int, int] | None = None, padded: bool = False
) -> Tensor:
    """Logits [2, 1 + sum of cuts, V]: the prefix rides with the first cut; a position may live in another slot."""
    prefix = model.prefix(condition(model, padded=padded), with_null=False)
    cache = model.new_cache(2, scratch=3)
    cache.prefix_mask = prefix.mask
    home = torch.arange(16)
    for position, slot in (slots or {}).items():
        home[position] = slot
    parts, fed = [], torch.zeros(16, dtype=torch.bool)
    for i, cut in enumerate(cuts):
        where = torch.tensor(cut).expand(2, -1)
        fed[cut] = True
        mask = torch.zeros(2, len(cut), cache.slots, dtype=torch.bool)
        for q, position in enumerate(cut):
            mask[:, q, home[: position + 1][fed[: position + 1]]] = True
        parts.append(model(TOKENS[:, cut], where, home[where], cache, mask, prefix.rows if i == 0 else None))
    return torch.cat(parts, dim=1)


def chunks(*sizes: int) -> list[list[int]]:
    bounds = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [list(range(a, b)) for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padded", [False, True])
def test_any_cut_gives_the_sequential_logits(layout: str, padded: bool) -> None:
    model = build(layout)
    sequential = run(model, chunks(*[1] * 15), padded=padded)  # AR-DTok has no place for the last cell
    for sizes in ((15,), (5, 10), (1, 7, 7)):
        assert torch.allclose(run(model, chunks(*sizes), padded=padded), sequential, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_slot_is_storage_and_a_position_is_place(layout: str) -> None:
    model = build(layout)
    moved = {3: 17, 8: 3, 5: 18}
    assert torch.allclose(run(model, chunks(6, 9), slots=moved), run(model, chunks(15)), atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_teacher_forcing_is_the_cached_pass(layout: str) -> None:
    model = build(layout)
    prefix = model.prefix(condition(model), with_null=False)
    assert torch.allclose(model.forward_train(prefix.rows, TOKENS), run(model, chunks(15)), atol=1e-10)


def test_positions_matter_and_swap_of_axes_is_seen() -> None:
    for layout in ("llamagen", "tiny"):
        model = build(layout)
        plain = run(model, chunks(16))
        assert model.rope is not None
        half = model.rope.shape[1] // 2
        model.rope = model.rope.roll(half, dims=1)
        assert not torch.allclose(run(model, chunks(16)), plain, atol=1e-3)


@pytest.mark.parametrize("layout", ["llamagen", "llamagen-plain"])
def test_masked_prefix_rows_do_not_matter(layout: str) -> None:
    model = build(layout)
    plain = condition(model, padded=True)
    other = Condition(plain.values + 5.0 * ~plain.mask[..., None], plain.mask)
    a, b = (model.prefix(c, with_null=True) for c in (plain, other))
    assert not torch.equal(a.rows, b.rows)
    results = []
    for prefix in (a, b):
        cache = model.new_cache(4)
        cache.prefix_mask = prefix.mask
        where = torch.arange(16).expand(4, -1)
        mask = torch.ones(16, 16, dtype=torch.bool).tril().expand(4, -1, -1)
        results.append(model(TOKENS.repeat(2, 1), where, where, cache, mask, prefix.rows))
    assert torch.equal(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_null_form(layout: str) -> None:
    model = build(layout)
    model.shares_null = False
    cond, both = (model.prefix(condition(model), with_null=null) for null in (False, True))
    assert both.rows.shape == (4, model.config.prefix_len, 16)
    assert torch.allclose(both.rows[:2], cond.rows)
    assert torch.equal(both.rows[2], both.rows[3])  # the same for every caption
    assert not torch.allclose(both.rows[0], both.rows[2], atol=1e-2)


def test_the_table_stays_float32_when_the_weights_go_to_bfloat16() -> None:
    expected = rope_table(build("llamagen").config)
    model = Transformer(GPTConfig(**CONFIG)).to(torch.bfloat16)
    assert model.output.weight.dtype == torch.bfloat16
    assert model.rope.dtype == torch.float32
    assert torch.equal(model.rope, expected)
    assert not torch.equal(expected.bfloat16().float(), expected)  # the rounding would show
    assert model.double().rope.dtype == torch.float64
    assert torch.equal(Transformer(GPTConfig(**CONFIG)).double().to(torch.bfloat16).rope.float(), expected)


def test_logits_are_float32_or_wider() -> None:
    model = build("llamagen").to(torch.bfloat16)
    prefix = model.prefix(
        Condition(torch.zeros(2, 5, 6).bfloat16(), torch.ones(2, 5, dtype=torch.bool)), with_null=True
    )
    cache = model.new_cache(4)
    where = torch.zeros(4, 1, dtype=torch.int64)
    logits = model(TOKENS[:, :1].repeat(2, 1), where, where, cache, torch.ones(4, 1, 1, dtype=torch.bool), prefix.rows)
    assert cache.kv.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert logits.shape == (4, 2, 24)


def test_rope_scale_stretches_the_coordinates() -> None:
    half = rope_table(GPTConfig(**{**CONFIG, "grid": 8, "rope_scale": 0.5}))[5:].view(8, 8, -1, 2)
    plain = rope_table(GPTConfig(**CONFIG))[5:].view(4, 4, -1, 2)
    assert torch.allclose(half[::2, ::2], plain, atol=1e-6)


@pytest.mark.parametrize(("dim", "hidden"), [(768, 2048), (1024, 2816), (1280, 3584), (3200, 8704), (4096, 11008)])
def test_llamagens_width_rule(dim: int, hidden: int) -> None:
    assert GPTConfig(dim, 1, 8, 16, 4, 5).hidden == hidden


def test_rms_norm_casts_back_before_the_weight() -> None:
    norm = RMSNorm(8, 1e-5).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    wide = x.float()
    expected = (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16() * norm.weight
    assert torch.equal(norm(x), expected)


def test_poison_fills_every_slot() -> None:
    for layout, prefix in (("llamagen", VIRTUAL_KEYS), ("llamagen-plain", 5), ("ar-dtok", 5)):
        cache = build(layout).new_cache(2, scratch=2)
        cache.poison(3.0)
        assert cache.kv.shape == (2, 2, 2, 2, prefix + 16 + 2 + 1, 8)
        assert (cache.kv == 3.0).all()
        assert cache.trash == 18


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padded", [False, True])
def test_what_a_cache_held_before_does_not_matter(layout: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(layout)
    fresh = run(model, chunks(5, 10), padded=padded)
    new_cache = Transformer.new_cache

    def poisoned(self: Transformer, rows: int, **room: Any) -> KVCache:
        cache = new_cache(self, rows, **room)
        cache.poison(1e4)
        return cache

    monkeypatch.setattr(Transformer, "new_cache", poisoned)
    assert torch.equal(run(model, chunks(5, 10), padded=padded), fresh)


@pytest.mark.parametrize("padded", [False, True])
def test_a_collapsed_prefix_gives_the_logits_of_all_its_rows(padded: bool) -> None:
    cuts = [[0, 1, 2, 3, 4, 5], [9, 7, 8, 6], *chunks(*[1] * 16)[10:]]
    collapsed, plain = (run(build(layout), cuts, padded=padded) for layout in ("llamagen", "llamagen-plain"))
    assert torch.allclose(collapsed, plain, atol=1e-10)


def test_a_prefix_without_a_visible_row_is_absent() -> None:
    """No caption is that short, but a key of weight zero must not turn into NaN."""
    model = build("llamagen")
    prefix = model.prefix(condition(model), with_null=False)
    cache = model.new_cache(2)
    cache.prefix_mask = torch.zeros_like(prefix.mask)
    where = torch.zeros(2, 1, dtype=torch.int64)
    logits = model(TOKENS[:, :1], where, where, cache, 1, prefix.rows)
    none = model.new_cache(2)
    none.prefix_mask = torch.zeros_like(prefix.mask)
    assert torch.allclose(logits[:, 1:], model(TOKENS[:, :1], where, where, none, 1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padded", [False, True])
def test_a_number_of_slots_is_a_mask(layout: str, padded: bool) -> None:
    model = build(layout)
    prefix = model.prefix(condition(model, padded=padded), with_null=False)
    results = []
    for last in (torch.ones(2, 1, 6, dtype=torch.bool), 6):
        cache = model.new_cache(2)
        cache.prefix_mask = prefix.mask
        where = torch.arange(5).expand(2, -1)
        model(TOKENS[:, :5], where, where, cache, torch.ones(2, 5, 5, dtype=torch.bool).tril(), prefix.rows)
        end = torch.full((2, 1), 5)
        results.append(model(TOKENS[:, 5:6], end, end, cache, last))
    assert torch.allclose(*results, atol=1e-12)


@pytest.mark.parametrize("layout", ["llamagen", "llamagen-plain"])
def test_a_short_prefix_is_a_padded_one(layout: str) -> None:
    """Rows of zero rotation have no place; the image keeps its own."""
    model = build(layout)
    long = condition(model)
    long.mask[:, :2] = False
    where, causal = torch.arange(16).expand(2, -1), torch.ones(16, 16, dtype=torch.bool).tril().expand(2, -1, -1)
    results = []
    for shown in (long, Condition(long.values[:, 2:], long.mask[:, 2:])):
        prefix = model.prefix(shown, with_null=False)
        cache = model.new_cache(2)
        cache.prefix_mask = prefix.mask
        results.append(model(TOKENS, where, where, cache, causal, prefix.rows))
    assert torch.allclose(*results, atol=1e-10)


def test_a_longer_prefix_than_the_model_has_is_refused() -> None:
    cache = build("ar-dtok").new_cache(2)
    with pytest.raises(ValueError, match="a prefix of 6 rows, but the model has room for 5"):
        cache.prefix_mask = torch.ones(2, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="a prefix of 6 rows, but the model was made for 5"):
        build("ar-dtok").new_cache(2, prefix_len=6)


@pytest.mark.parametrize(("layout", "kept"), [("ar-dtok", 3), ("llamagen", VIRTUAL_KEYS)])
def test_a_cache_keeps_room_for_the_prefix_in_use_alone(layout: str, kept: int) -> None:
    cache = build(layout).new_cache(2, prefix_len=3)
    assert cache.kv.shape[4] == kept + 16 + 1
    assert cache.prefix_mask.shape == (2, 3)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.float16, 1e-4)])
def test_scores_of_the_virtual_keys(dtype: torch.dtype, bound: float) -> None:
    check_scores(dtype, bound)


def check_scores(dtype: torch.dtype, bound: float) -> None:
    count = torch.arange(1, 121)
    total = log_count(count, dtype).double().exp().sum(1)
    assert ((total / count - 1).abs() < bound).all()


def test_one_rounded_score_would_weigh_the_prefix_wrongly() -> None:
    check_scores(torch.bfloat16, 2e-4)
    count = torch.arange(1, 121)
    single = count.double().log().bfloat16().double().exp()
    assert (single / count - 1).abs().max() > 0.01


def test_running_mean() -> None:
    values = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[False, False, True, True, True], [True, False, True, True, False]])
    for r, last in itertools.product(range(2), range(5)):
        seen = [t for t in range(last + 1) if mask[r, t]]
        expected = values[r][:, seen].mean(1) if seen else torch.zeros(3, 4).double()
        assert torch.allclose(running_mean(values, mask)[r, :, last], expected)
