"""LlamaGen's VQ tokenizer: encoder, decoder, building blocks, non-square and odd sizes."""

import pytest
import torch
from torch import Tensor, nn

from mulosd.models import vq
from mulosd.models.vq import Quantizer, VQConfig, VQModel
from tests.parity.fixtures import Fixture, agrees, load

ENCODE, DECODE, BLOCKS = load("vq_encode"), load("vq_decode"), load("vq_blocks")


def load_vq(fixture: Fixture, absent: tuple[str, ...]) -> VQModel:
    """A model with a fixture's half of the weights; exactly the keys of `absent` may be missing."""
    c = fixture.config
    config = VQConfig(
        ch=c["ch"],
        ch_mult=tuple(c["ch_mult"]),
        num_res_blocks=c["num_res_blocks"],
        z_channels=c["z_channels"],
        codebook_size=c["codebook_size"],
        codebook_dim=c["codebook_embed_dim"],
    )
    model = VQModel(config)
    missing, unexpected = model.load_state_dict(fixture.weights, strict=False)
    assert not unexpected
    assert {key.split(".")[0] for key in missing} == set(absent)
    return model.eval().requires_grad_(False)


def encoder() -> VQModel:
    return load_vq(ENCODE, ("decoder", "post_quant_conv"))


def decoder() -> VQModel:
    return load_vq(DECODE, ("encoder", "quant_conv"))


def test_both_halves_load_strictly_into_one_model() -> None:
    weights = ENCODE.weights | DECODE.weights
    encoder().load_state_dict(weights, strict=True)


def test_encode() -> None:
    model, out = encoder(), ENCODE.tensors
    assert agrees(model.latent(out["in.x"]), out["out.pre_quant"])
    codes = model.encode(out["in.x"])
    assert codes.shape == (2, 4, 6)
    assert torch.equal(codes.flatten(), out["out.indices"])
    assert agrees(model.quantize.lookup(codes), out["out.quant"])
    for b in range(2):
        assert torch.equal(model.encode(out["in.x"][b : b + 1])[0], codes[b])


def test_decode() -> None:
    model, out = decoder(), DECODE.tensors
    codes = out["in.codes"].long().view(2, 4, 4)
    assert agrees(model.quantize.lookup(codes), out["out.embedding"])
    assert agrees(model.decode(codes), out["out.pixels"])
    assert out["out.pixels"].abs().max() > 1  # unclamped: the fixture would show a clamp


def test_codebook_without_normalisation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quantizer, "codebook", lambda self: self.embedding.weight)
    codes = encoder().encode(ENCODE.tensors["in.x"])
    assert not torch.equal(codes.flatten(), ENCODE.tensors["out.indices"])
    pixels = decoder().decode(DECODE.tensors["in.codes"].long().view(2, 4, 4))
    assert not agrees(pixels, DECODE.tensors["out.pixels"])


def test_symmetric_padding_of_the_downsampling_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vq._Downsample, "forward", lambda self, x: self.conv(nn.functional.pad(x, (1, 0, 1, 0))))
    assert not agrees(encoder().latent(ENCODE.tensors["in.x"]), ENCODE.tensors["out.pre_quant"])


@pytest.mark.parametrize(
    ("name", "block", "source"),
    [
        ("res32_64", vq.ResBlock(32, 64), "in.x32"),
        ("attn64", vq.AttnBlock(64), "out.res32_64"),
        ("down32", vq._Downsample(32), "in.x32"),
        ("up32", vq._Upsample(32), "in.x32"),
    ],
)
def test_blocks(name: str, block: nn.Module, source: str) -> None:
    own = {key.removeprefix(f"{name}."): value for key, value in BLOCKS.weights.items() if key.startswith(f"{name}.")}
    block.load_state_dict(own, strict=True)
    with torch.no_grad():
        result: Tensor = block(BLOCKS.tensors[source])
    assert agrees(result, BLOCKS.tensors[f"out.{name}"])
