"""The learned up-sampler: row-causal to the bit, its files checked, every shipped arm loadable and small."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from mulosd.errors import ConfigError, DataError
from mulosd.families.card import Card, family_folder, load_card
from mulosd.families.latent_card import find_latent, read_latent
from mulosd.files.publish import sha256_hex
from mulosd.methods import AR, DraftOnly, MuLoSD
from mulosd.targets import load_target
from mulosd.upsample.latent import Latent, LatentConfig, LatentNet, RowCausalConv, load_latent
from tests.unit.decoding import toys

GRID = 4
LOW = torch.randint(toys.CODES, (3, GRID, GRID), generator=torch.Generator().manual_seed(0))
ARMS = [(loss, ratio) for loss in ("ce", "pixel", "gan") for ratio in (2, 4)]


def random_net(ratio: int) -> LatentNet:
    """Random weights, far from the identity that training starts from."""
    torch.manual_seed(0)
    net = LatentNet(LatentConfig(ratio, width=16, blocks=3, fine_width=8))
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.25)
    return net.requires_grad_(False)


def upsampler(ratio: int, dtype: torch.dtype = torch.float32) -> Latent:
    return Latent(random_net(ratio).to(dtype), toys.family(dtype=dtype).vq, GRID)


def changed_below(row: int) -> Tensor:
    other = LOW.clone()
    other[:, row:] = (other[:, row:] + 7) % toys.CODES
    return other


def is_row_causal(upsample: Callable[[Tensor], Tensor], ratio: int) -> bool:
    """Whether low rows at or below a row leave the high rows above untouched, and act on their own."""
    for row in range(1, GRID):
        first, second = upsample(LOW), upsample(changed_below(row))
        if not torch.equal(first[..., : ratio * row, :], second[..., : ratio * row, :]):
            return False
        assert not torch.equal(first[..., ratio * row :, :], second[..., ratio * row :, :])
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ratio", [2, 4])
def test_high_rows_do_not_see_low_rows_below(ratio: int, dtype: torch.dtype) -> None:
    """To the bit, in the vectors too and not only in the codes that they are rounded to."""
    latent = upsampler(ratio, dtype)
    assert is_row_causal(lambda low: latent(low, 0), ratio)
    assert is_row_causal(lambda low: latent.net(latent.vq.quantize.lookup(low)), ratio)


def test_an_ordinary_convolution_is_noticed() -> None:
    class Ordinary(torch.nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x, (1, 1, 1, 1)))

    latent = upsampler(2)
    last = latent.net.conv_out
    latent.net.conv_out = Ordinary(last.in_channels, last.out_channels, 3)  # type: ignore[assignment]
    assert not is_row_causal(lambda low: latent.net(latent.vq.quantize.lookup(low)), 2)


def test_the_convolution_is_a_3x3_one_with_a_zeroed_row() -> None:
    torch.manual_seed(0)
    conv = RowCausalConv(2, 3).double()
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    kernel = torch.cat([conv.weight, torch.zeros(3, 2, 1, 3)], dim=2)
    assert torch.allclose(conv(x), F.conv2d(x, kernel, conv.bias, padding=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ratio", [2, 4])
def test_partial_calls_are_rows_of_the_full_call(ratio: int, dtype: torch.dtype) -> None:
    latent = upsampler(ratio, dtype)
    full = latent(LOW, 0)
    assert full.shape == (3, GRID * ratio, GRID * ratio)
    assert full.dtype == torch.int64
    for stop in range(1, GRID + 1):
        for start in range(stop):
            assert torch.equal(latent(LOW[:, :stop], start), full[:, start * ratio : stop * ratio])


def test_earlier_rows_are_context_of_later_ones() -> None:
    latent = upsampler(2)
    assert not torch.equal(latent(LOW, 1), latent(torch.cat([changed_below(0)[:, :1], LOW[:, 1:]], 1), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_does_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    latent = upsampler(2, dtype)
    whole = latent(LOW, 0)
    for b in range(3):
        assert torch.equal(latent(LOW[b : b + 1], 0)[0], whole[b])


def test_a_fresh_network_repeats_its_codes() -> None:
    latent = Latent(
        LatentNet(LatentConfig(2, width=16, blocks=1, fine_width=8)), toys.family(dtype=torch.float32).vq, GRID
    )
    assert torch.equal(latent(LOW, 0), LOW.repeat_interleave(2, 1).repeat_interleave(2, 2))


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    """The card of a random 2x network, as training publishes it."""
    net = random_net(2)
    folder = tmp_path / "upsamplers"
    folder.mkdir()
    weights = save({key: value.half().contiguous() for key, value in net.state_dict().items()})
    (folder / "latent-ce-2x.safetensors").write_bytes(weights)
    raw = {
        "file": "latent-ce-2x.safetensors",
        "sha256": sha256_hex(weights),
        "config": asdict(net.config),
        "recipe": {"tokenizer_sha256": "a" * 64},
        "quality": {},
    }
    path = folder / "latent-ce-2x.json"
    path.write_text(json.dumps(raw))
    return path


def family_card(arm: Path, tokenizer: str = "a" * 64) -> Card:
    card = load_card("tiny-mid")
    return replace(card, folder=arm.parent.parent, raw={**card.raw, "parts": {"vq": {"sha256": tokenizer}}})


def rewrite(arm: Path, **changes: Any) -> None:
    arm.write_text(json.dumps({**json.loads(arm.read_text()), **changes}))


def test_a_published_network_is_loaded_as_the_tokenizer_is(arm: Path) -> None:
    vq = toys.family(dtype=torch.float64).vq
    latent = load_latent(find_latent(family_card(arm), "latent-ce"), vq, GRID)
    assert latent.net.conv_in.weight.dtype == torch.float64
    state = {key: value.half().double() for key, value in random_net(2).state_dict().items()}
    assert all(torch.equal(value, state[key]) for key, value in latent.net.state_dict().items())


def test_another_tokenizer_is_refused(arm: Path) -> None:
    find_latent(family_card(arm), "latent-ce")
    with pytest.raises(DataError, match=r"trained for the tokenizer aaaaaaaaaaaa…, tiny has bbbbbbbbbbbb…"):
        find_latent(family_card(arm, "b" * 64), "latent-ce")


def test_a_missing_arm_names_those_that_are_there(arm: Path) -> None:
    with pytest.raises(ConfigError, match=r"no up-sampler latent-gan-2x .*: latent-ce-2x\); choose another, or train"):
        find_latent(family_card(arm), "latent-gan")


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_damaged_files_are_refused(arm: Path, ending: str) -> None:
    path = arm.with_suffix(f".{ending}")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="restore the"):
        load_latent(find_latent(family_card(arm), "latent-ce"), toys.family(dtype=torch.float32).vq, GRID)


def test_missing_weights_and_foreign_shapes_are_refused(arm: Path) -> None:
    vq = toys.family(dtype=torch.float32).vq
    rewrite(arm, config={**json.loads(arm.read_text())["config"], "width": 24})
    with pytest.raises(DataError, match=r"its tensors are not those of latent-ce-2x\.json"):
        load_latent(read_latent(arm), vq, GRID)
    arm.with_suffix(".safetensors").unlink()
    with pytest.raises(DataError, match="weights of this up-sampler are missing"):
        load_latent(read_latent(arm), vq, GRID)


def test_a_card_names_a_file_beside_it(arm: Path) -> None:
    rewrite(arm, file="../latent-ce-2x.safetensors")
    with pytest.raises(DataError, match="must be a bare file name"):
        read_latent(arm)


def test_the_content_hash_covers_shape_and_weights_alone(arm: Path) -> None:
    before = read_latent(arm).content_hash
    rewrite(arm, quality={"n": 1})
    assert read_latent(arm).content_hash == before
    rewrite(arm, sha256="0" * 64)
    assert read_latent(arm).content_hash != before


def test_a_cell_key_holds_the_content_of_the_network(arm: Path) -> None:
    card = family_card(arm)
    latent, bicubic = DraftOnly(upsampler="latent-ce"), DraftOnly()
    assert bicubic.weights_hash(card) == AR().weights_hash(card) == card.content_hash
    before = latent.weights_hash(card)
    assert before != card.content_hash
    rewrite(arm, quality={"n": 1})
    assert latent.weights_hash(card) == before
    rewrite(arm, sha256="0" * 64)
    assert latent.weights_hash(card) != before


def test_a_target_without_the_network_refuses_before_weights_load(arm: Path) -> None:
    DraftOnly(upsampler="latent-ce").check_fit(family_card(arm))
    with pytest.raises(ConfigError, match="no up-sampler latent-pixel-2x"):
        MuLoSD(upsampler="latent-pixel").check_fit(family_card(arm))
    with pytest.raises(ConfigError, match="no up-sampler latent-pixel-2x"):
        MuLoSD(upsampler="latent-pixel").weights_hash(family_card(arm))


@pytest.mark.parametrize(("loss", "ratio"), ARMS)
def test_every_shipped_arm_loads_and_states_its_quality(loss: str, ratio: int) -> None:
    card = load_card({2: "tiny-mid", 4: "tiny-high"}[ratio])
    latent = find_latent(card, f"latent-{loss}")
    loaded = load_latent(latent, load_target("tiny-low").vq, 8)
    high = loaded(torch.arange(64).view(1, 8, 8), 0)
    assert high.shape == (1, 8 * ratio, 8 * ratio)
    assert sum(weight.numel() for weight in loaded.net.parameters()) <= 600_000
    assert latent.raw["recipe"]["loss"] == loss
    assert latent.raw["trained"]["step"] > 0
    for name in ("upsampler", "bicubic", "true_codes"):
        assert {"token_agreement", "psnr", "geneval/overall", "detail/accuracy"} <= latent.raw["quality"][name].keys()
        assert latent.raw["quality"][name]["geneval/overall"]["n"] > 0


def test_the_shipped_arms_are_small() -> None:
    files = list((family_folder("tiny") / "upsamplers").iterdir())
    assert len(files) == 2 * len(ARMS)
    assert sum(file.stat().st_size for file in files) <= 6 * 2**20
