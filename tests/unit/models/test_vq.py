"""The tokenizer's own options: patch stem, strides, non-square images, round trips of codes."""

import pytest
import torch

from mulosd.models.vq import VQConfig, VQModel


def build(**changes: object) -> VQModel:
    torch.manual_seed(0)
    fields = {"ch": 32, "ch_mult": (1, 1), "num_res_blocks": 1, "z_channels": 8, "codebook_size": 24, "codebook_dim": 4}
    return VQModel(VQConfig(**{**fields, **changes})).double().eval().requires_grad_(False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("patch", "ch_mult", "stride"), [(1, (1, 1), 2), (4, (1,), 4), (2, (1, 2, 2), 8)])
def test_stride_and_shapes(patch: int, ch_mult: tuple[int, ...], stride: int) -> None:
    model = build(patch=patch, ch_mult=ch_mult)
    assert model.config.stride == stride
    codes = model.encode(torch.rand(2, 3, 2 * stride, 3 * stride).double() * 2 - 1)
    assert codes.shape == (2, 2, 3)
    assert model.decode(codes).shape == (2, 3, 2 * stride, 3 * stride)


def test_the_default_is_the_released_layout() -> None:
    assert VQConfig().stride == 16
    assert VQConfig().patch == 1


def test_a_code_is_its_own_nearest() -> None:
    model = build()
    codes = torch.arange(24).view(1, 4, 6)
    assert torch.equal(model.quantize.nearest(model.quantize.lookup(codes)), codes)
    assert torch.equal(model.quantize.nearest(7.5 * model.quantize.lookup(codes)), codes)  # cosine: length is ignored
    norms = model.quantize.lookup(codes).norm(dim=1)
    assert torch.allclose(norms, torch.ones_like(norms))


def test_images_do_not_depend_on_their_batch() -> None:
    model, codes = build(), torch.randint(24, (3, 4, 4), generator=torch.Generator().manual_seed(0))
    pixels = model.decode(codes)
    for b in range(3):
        assert torch.allclose(model.decode(codes[b : b + 1])[0], pixels[b], atol=1e-12)
        assert torch.equal(model.encode(pixels[b : b + 1])[0], model.encode(pixels)[b])


def test_the_patch_stem_and_its_inverse_share_one_layout() -> None:
    """Inside a patch, channels are (colour, row, column) at both ends."""
    model = build(patch=4, ch_mult=(1,))
    seen: list[torch.Tensor] = []
    first, last = model.encoder.conv_in, model.decoder.conv_out
    first.weight.zero_()
    first.bias.zero_()
    first.weight[torch.arange(32), torch.arange(32), 1, 1] = 1.0
    first.register_forward_hook(lambda _module, _args, out: seen.append(out))
    last.weight.zero_()
    last.bias.copy_(torch.arange(48))
    image = model.decode(torch.zeros(1, 2, 3, dtype=torch.int64))
    assert torch.equal(image[0, :, 4:, 8:], torch.arange(48.0).double().view(3, 4, 4))
    model.encode(image)
    assert torch.equal(seen[0][0, :, 1, 2], torch.arange(32.0).double())
