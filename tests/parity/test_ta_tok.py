"""TA-Tok: quantiser, decoder half, whole tokenizer at the three scales, against the reference."""

import pytest
import torch

from mulosd.models.ta_tok import Bottleneck, SimVQ, TATok, TATokConfig, TATokDecoder
from tests.parity.fixtures import agrees, load

QUANTISER, FULL = load("ta_tok_bottleneck"), load("ta_tok_full")
CONFIG = TATokConfig(
    width=24,
    bottleneck_dim=16,
    codebook_size=96,
    decoder_heads=2,
    decoder_mlp=40,
    decoder_side=4,
    encoder_layers=3,
    encoder_heads=2,
    encoder_mlp=40,
    patch=4,
    image_px=38,
)
TOKENS = {1: 81, 2: 16, 3: 9}  # scale: ids of an image


def bottleneck(variant: str) -> Bottleneck:
    normalized = QUANTISER.config[variant]["l2_normalized"]
    config = TATokConfig(width=24, bottleneck_dim=16, codebook_size=96, l2_normalized=normalized)
    module = Bottleneck(config, has_encoder=True)
    module.load_state_dict(QUANTISER.weights, strict=True)
    return module.requires_grad_(False)


def ta_tok() -> TATok:
    module = TATok(CONFIG)
    module.load_state_dict(FULL.weights, strict=True)
    return module.eval().requires_grad_(False)


@pytest.mark.parametrize("variant", ["l2", "plain"])
def test_the_quantiser(variant: str) -> None:
    module, out = bottleneck(variant), QUANTISER.tensors
    assert agrees(module.regularizer.codebook(), out[f"out.{variant}.codebook"])
    ids = module.encode(out["in.z"])
    assert torch.equal(ids, out[f"out.{variant}.indices"])
    assert agrees(module.regularizer.lookup(ids), out[f"out.{variant}.regularized_z"])
    assert agrees(module.decode(ids), out[f"out.{variant}.output"])
    assert agrees(module.decode(out["in.indices"]), out[f"out.{variant}.decode"])


@pytest.mark.parametrize("scale", TOKENS)
def test_ids_to_features(scale: int) -> None:
    """With the decoder half alone, as text-to-image uses it."""
    half = TATokDecoder(CONFIG)
    image_half = ("encoder.", "encode_task_layer.", "bottleneck.in_linear.")
    half.load_state_dict({k: v for k, v in FULL.weights.items() if not k.startswith(image_half)}, strict=True)
    ids = FULL.tensors[f"out.s{scale}.indices"]
    assert ids.shape == (2, TOKENS[scale])
    with torch.no_grad():
        assert agrees(half.decode(ids), FULL.tensors[f"out.s{scale}.decoded"])
        assert agrees(half.decode(ids[1:]), FULL.tensors[f"out.s{scale}.decoded"][1:])


def test_the_vision_tower() -> None:
    features = ta_tok().image_features(FULL.tensors["in.image_0_1"])
    assert agrees(features.flatten(2).transpose(1, 2), FULL.tensors["out.encoder_hidden_m2"])


@pytest.mark.parametrize("scale", TOKENS)
def test_images_to_ids(scale: int) -> None:
    images, out = FULL.tensors["in.image_0_1"], FULL.tensors
    assert agrees(ta_tok().task_features(images, scale), out[f"out.s{scale}.vq_feats"])
    assert torch.equal(ta_tok().encode(images, scale), out[f"out.s{scale}.indices"])


def test_ids_that_form_no_square_are_refused() -> None:
    with pytest.raises(ValueError, match="80 ids"):
        ta_tok().decode(torch.zeros(1, 80, dtype=torch.int64))


def test_a_codebook_without_normalisation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimVQ, "_project", lambda self, rows: self.embedding_proj(rows))
    assert not agrees(ta_tok().decode(FULL.tensors["out.s1.indices"]), FULL.tensors["out.s1.decoded"])


@pytest.mark.parametrize("scale", TOKENS)
def test_a_resize_of_the_positions_without_antialias_is_seen(scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resize = torch.nn.functional.interpolate

    def coarse(x: torch.Tensor, *, antialias: bool, **options: object) -> torch.Tensor:
        return resize(x, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "interpolate", coarse)
    seen = not agrees(ta_tok().decode(FULL.tensors[f"out.s{scale}.indices"]), FULL.tensors[f"out.s{scale}.decoded"])
    assert seen == (scale == 3)  # the others are enlarged or left as they are
