"""`mulosd doctor`: what this machine offers and whether the shipped weights are whole. Reports; changes nothing."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.provenance import machine, versions

ASSETS = Path(__file__).resolve().parents[1] / "mulosd" / "assets"
BLOCK = 1 << 20


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
    """Each weight file against the sha256 that its family's card states under `parts`."""
    named: set[Path] = set()
    for card in sorted(assets.rglob("card.json")):
        for part in json.loads(card.read_text(encoding="utf-8"))["parts"].values():
            path = card.parent / Path(part["file"]).name
            named.add(path)
            yield _weight(path, part["sha256"], card)
    for path in sorted(assets.rglob("*.safetensors")):
        if path not in named:
            yield Finding(path.name, f"no card in {path.parent} states its sha256", is_problem=True)
    if not named:
        yield Finding("weights", f"none shipped in {assets}", is_problem=True)


def _weight(path: Path, expected: str, card: Path) -> Finding:
    if not path.is_file():
        return Finding(path.name, f"missing, named by {card.name}; reinstall or check out the file", is_problem=True)
    found = _sha256(path)
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
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding("write access", f"{existing}: {error.strerror}; choose another --out folder", is_problem=True)
    free = os.statvfs(existing)
    return Finding("write access", f"{existing}, {free.f_bavail * free.f_frsize / 2**30:.1f} GiB free")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
