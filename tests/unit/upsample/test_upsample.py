"""Up-samplers: exact copies, row-causality to the bit, agreement of a growing canvas with the full one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mulosd.errors import ConfigError
from mulosd.methods import UPSAMPLERS
from mulosd.upsample import build_upsampler
from mulosd.upsample.pixel import Bicubic
from mulosd.upsample.token import Repeat
from tests.unit.decoding import toys

GRID, RATIO = 4, 2
LOW = torch.randint(toys.CODES, (3, GRID, GRID), generator=torch.Generator().manual_seed(0))


def build(name: str, ratio: int = RATIO) -> Callable[[Tensor, int], Tensor]:
    return build_upsampler(name, vq=toys.family().vq, draft_grid=GRID, ratio=ratio)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_repeat_copies_each_code_to_a_block(ratio: int) -> None:
    high = Repeat(ratio)(LOW, 1)
    assert high.shape == (3, (GRID - 1) * ratio, GRID * ratio)
    for row in range(high.shape[1]):
        for col in range(high.shape[2]):
            assert torch.equal(high[:, row, col], LOW[:, 1 + row // ratio, col // ratio])
    blocks = high.unflatten(1, (-1, ratio)).unflatten(3, (-1, ratio)).movedim(3, 2).flatten(3)
    assert torch.equal(blocks.mode(-1).values, LOW[:, 1:])  # the majority of a block gives the draft back


@pytest.mark.parametrize("name", UPSAMPLERS)
@pytest.mark.parametrize("ratio", [2, 4])
def test_shapes_and_range(name: str, ratio: int) -> None:
    for start, stop in ((0, 1), (0, 4), (2, 3), (3, 4)):
        high = build(name, ratio)(LOW[:, :stop], start)
        assert high.shape == (3, (stop - start) * ratio, GRID * ratio)
        assert high.dtype == torch.int64
        assert ((high >= 0) & (high < toys.CODES)).all()


def changed_below(row: int) -> Tensor:
    other = LOW.clone()
    other[:, row:] = (other[:, row:] + 7) % toys.CODES
    return other


def is_row_causal(upsample: Callable[[Tensor, int], Tensor], rows_given: Callable[[int], int]) -> bool:
    """Whether low rows at or below `row` leave the high rows above untouched."""
    for row in range(1, GRID):
        first, second = (upsample(low[:, : rows_given(row)], 0)[:, : RATIO * row] for low in (LOW, changed_below(row)))
        if not torch.equal(first, second):
            return False
    return True


@pytest.mark.parametrize("name", UPSAMPLERS)
def test_row_mode_is_row_causal(name: str) -> None:
    assert is_row_causal(build(name), lambda row: row)


def test_the_full_canvas_is_not_row_causal() -> None:
    """The test can fail: given the rows below, the tokenizer's norms and attention let them act above."""
    assert not is_row_causal(build("bicubic"), lambda _: GRID)
    assert is_row_causal(build("repeat"), lambda _: GRID)


def test_earlier_rows_are_context_of_later_ones() -> None:
    other = LOW.clone()
    other[:, 0] = (other[:, 0] + 7) % toys.CODES
    assert not torch.equal(build("bicubic")(LOW, 1), build("bicubic")(other, 1))
    assert torch.equal(build("repeat")(LOW, 1), build("repeat")(other, 1))


def test_a_growing_canvas_agrees_loosely_with_the_full_one() -> None:
    """Rows decoded as they come differ from the full canvas, but far less than unrelated codes do."""
    upsample = build("bicubic")
    full = upsample(LOW, 0)
    grown = torch.cat([upsample(LOW[:, : row + 1], row) for row in range(GRID)], dim=1)
    agreement = float((grown == full).double().mean())
    unrelated = float((full == full.roll(1, dims=0)).double().mean())
    assert grown.shape == full.shape
    assert unrelated + 0.2 < agreement < 1.0
    assert torch.equal(grown[:, -RATIO:], full[:, -RATIO:])  # the last rows see the whole draft


def test_an_image_does_not_depend_on_its_batch() -> None:
    whole = build("bicubic")(LOW, 0)
    for b in range(3):
        assert torch.equal(build("bicubic")(LOW[b : b + 1], 0)[0], whole[b])


def test_bicubic_is_decode_resize_encode() -> None:
    vq = toys.family().vq
    pixels = vq.decode(LOW).clamp(-1, 1)
    large = torch.nn.functional.interpolate(pixels, scale_factor=2.0, mode="bicubic").clamp(-1, 1)
    assert torch.equal(Bicubic(vq, GRID, RATIO)(LOW, 0), vq.encode(large))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown up-sampler 'bicubik'.*Did you mean 'bicubic'"):
        build("bicubik")
