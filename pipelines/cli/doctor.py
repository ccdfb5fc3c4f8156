"""`mulosd doctor`: what this machine offers, whether weights are whole, whether a target decodes. Changes nothing."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mulosd.errors import UserError
from mulosd.families.card import load_card
from mulosd.families.latent_card import UPSAMPLERS, read_latent
from mulosd.families.memory import memory_lines, memory_needs
from mulosd.families.weight_files import check_part, tensors_of
from mulosd.files.publish import file_sha256, nearest_folder, problem_of_writing
from pipelines.host.provenance import machine, processor_name, versions

ASSETS = Path(__file__).resolve().parents[2] / "mulosd" / "assets"
PROMPT, CLASS_PROMPT, SEED = "a photo of a red circle", "class:0", 0  # what a target is tried with

if TYPE_CHECKING:
    from mulosd.families.card import Card


@dataclass(frozen=True)
class Finding:
    """One line of the report; a problem makes the command exit with 2."""

    name: str
    text: str
    is_problem: bool = False


def examine(folder: Path, assets: Path = ASSETS) -> Iterator[Finding]:
    """Findings, cheap ones first; `folder` is tried for writing."""
    yield from (Finding(name, version or "not installed", version is None) for name, version in versions().items())
    yield from _processor()
    yield from _devices()
    yield from weight_findings(assets)
    yield _writable(folder)


def weight_findings(assets: Path = ASSETS) -> Iterator[Finding]:
    """Each weight file against the sha256 that a card states: its family's for a part, its own for an up-sampler."""
    named: set[Path] = set()
    for path, digest, card in _stated(assets):
        named.add(path)
        yield _weight(path, digest, card)
    for path in sorted(assets.rglob("*.safetensors")):
        if path not in named:
            yield Finding(path.name, f"no card in {path.parent} states its sha256", is_problem=True)
    if not named:
        yield Finding("weights", f"none shipped in {assets}", is_problem=True)


def _stated(assets: Path) -> Iterator[tuple[Path, str, Path]]:
    """(weight file, sha256, card that states it) of everything shipped in `assets`."""
    for card in sorted(assets.rglob("card.json")):
        for part in json.loads(card.read_text(encoding="utf-8"))["parts"].values():
            yield card.parent / Path(part["file"]).name, part["sha256"], card
        for path in sorted((card.parent / UPSAMPLERS).glob("*.json")):
            latent = read_latent(path)
            yield latent.weights, latent.sha256, path


def examine_target(target_id: str, *, device: str, dtype: str) -> Iterator[Finding]:
    """Findings about one target: its files, hashes and shapes, its memory against the device's, one token decoded.

    Each rests on those before it: the first problem ends the list.
    """
    card = load_card(target_id)
    yield Finding(target_id, f"{card.grid}×{card.grid} tokens, {card.image_px} px, {card.codebook_size} codes")
    if card.missing:
        yield Finding("files", card.fetch_hint, is_problem=True)
        return
    try:
        for name in card.parts:
            yield Finding(name, _part(card, name))
    except UserError as error:
        yield Finding("files", str(error), is_problem=True)
        return
    yield from (Finding("memory", line.strip()) for line in memory_lines(card, dtype=dtype, batch_size=1))
    place = _place(card, device, dtype)
    yield place
    if place.is_problem:
        return
    yield _token(card, device, dtype)


def _part(card: "Card", name: str) -> str:
    """What a part holds, after its hash and its shapes were checked; UserError otherwise."""
    import torch

    from mulosd.errors import DataError
    from mulosd.models.architectures import build_part, differences

    entry, path = card.raw["parts"][name], check_part(card, name)
    if path.is_dir():
        return f"{len(entry['files'])} files in {path}, hashes as in card.json"
    stored = tensors_of(path)
    with torch.device("meta"):
        expected = build_part(name, entry).state_dict()
        wrong = differences(expected, {key: torch.empty(shape) for key, (_, shape) in stored.items()})
    if wrong:
        raise DataError(f"{path}: {wrong}; convert or restore the file.")
    dtypes = ", ".join(sorted({dtype for dtype, _ in stored.values()}))
    return (
        f"{path.stat().st_size / 2**20:.1f} MiB of {dtypes} in {len(stored)} tensors, hash and shapes as in card.json"
    )


def _place(card: "Card", device: str, dtype: str) -> Finding:
    """The device, what is free on it, and whether the target fits into that."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return Finding(device, "torch sees no CUDA device; use --device cpu", is_problem=True)
    name, free = _free(device)
    needed = sum(need.num_bytes or 0 for need in memory_needs(card, dtype=dtype, batch_size=1))
    text = f"{name}, {free / 2**30:.1f} GiB free"
    if needed <= free:
        return Finding(device, text)
    return Finding(
        device, f"{text}, {needed / 2**30:.1f} GiB needed; free some or use a smaller --dtype", is_problem=True
    )


def _free(device: str) -> tuple[str, float]:
    """(name, free bytes) of a device; infinitely many where the system does not say."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "inf")
    return processor_name() or "cpu", 1024 * float(kib)


def _token(card: "Card", device: str, dtype: str) -> Finding:
    """Load the target and decode its first token."""
    from mulosd.targets import load_target

    prompt = PROMPT if card.num_classes is None else CLASS_PROMPT
    began = time.perf_counter()
    try:
        target = load_target(card.target_id, device=device, dtype=dtype)
        loaded = time.perf_counter()
        (code,) = target.first_codes([prompt], [SEED])
    except UserError as error:
        return Finding("one token", str(error), is_problem=True)
    took = time.perf_counter() - loaded
    return Finding(
        "one token", f"code {code} on {device} in {dtype}: loaded in {loaded - began:.1f} s, decoded in {took:.2f} s"
    )


def _weight(path: Path, expected: str, card: Path) -> Finding:
    if not path.is_file():
        return Finding(path.name, f"missing, named by {card.name}; reinstall or check out the file", is_problem=True)
    found = file_sha256(path)
    if found != expected:
        text = f"sha256 {found[:12]}… is not {expected[:12]}… of {card.name}; check out the file again"
        return Finding(path.name, text, is_problem=True)
    return Finding(path.name, f"{path.stat().st_size / 2**20:.1f} MiB, sha256 as in {card.name}")


def _processor() -> Iterator[Finding]:
    facts = machine()
    yield Finding("processors", f"{facts['cpus']} usable, load {facts['load_1min']} over the last minute")
    policy = facts["omp_wait_policy"]
    text = policy or "unset; set it to passive, waiting threads otherwise spin and slow each other down"
    yield Finding("OMP_WAIT_POLICY", text, is_problem=(policy or "").lower() != "passive")


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("torch threads", str(torch.get_num_threads()))
    if not torch.cuda.is_available():
        yield Finding("devices", "cpu")
    for index in range(torch.cuda.device_count()):
        yield Finding(f"cuda:{index}", torch.cuda.get_device_name(index))


def _writable(folder: Path) -> Finding:
    existing = nearest_folder(folder)
    if problem := problem_of_writing(existing):
        return Finding("write access", f"{existing}: {problem}; choose another --out folder", is_problem=True)
    free = os.statvfs(existing)
    return Finding("write access", f"{existing}, {free.f_bavail * free.f_frsize / 2**30:.1f} GiB free")
