"""Files of a family on disk: hashes and what a safetensors file says of itself. No torch."""

import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mulosd.errors import ConfigError, DataError
from mulosd.families.card import Card
from mulosd.files.publish import file_sha256
from mulosd.files.reading import is_file

NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # safetensors -> torch


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of a safetensors file, read from its header."""
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a mapping
            stored = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: not a whole safetensors file ({error}); restore or convert it again.") from error
    return {name: (NAMES.get(dtype, dtype), shape) for name, (dtype, shape) in stored.items()}


def num_values(path: Path, without: tuple[str, ...] = ()) -> int:
    """Numbers stored in a safetensors file, but for tensors whose names begin like one of `without`."""
    return sum(math.prod(shape) for name, (_, shape) in tensors_of(path).items() if not name.startswith(without))


def check_part(card: Card, name: str) -> Path:
    """Path of a part's weights (a file, or a folder of a text encoder) after every hash was compared with the card."""
    if card.missing:
        raise DataError(card.fetch_hint)
    entry = card.raw["parts"][name]
    if "files" not in entry:
        return _checked(card, f"parts.{name}.file", entry["file"], entry["sha256"], card.folder)
    for file, digest in entry["files"].items():
        _checked(card, f"parts.{name}.files", file, digest, card.folder / bare_name(card, name, entry["folder"]))
    return card.folder / str(entry["folder"])


def bare_name(card: Card, key: str, value: Any) -> str:
    """A file name of a card, which must not lead out of its folder."""
    text = str(value)
    if Path(text).name != text or text.startswith(".") or not text:
        raise ConfigError(f"{card.folder / 'card.json'}: {key} = {text!r} must be a bare file name.")
    return text


def _checked(card: Card, key: str, name: Any, expected: str, folder: Path) -> Path:
    path = folder / bare_name(card, key, name)
    if not is_file(path):
        raise DataError(f"{path}: weights of {card.target_id} are missing; restore the file named by card.json.")
    found = file_sha256(path)
    if found != expected:
        raise DataError(f"{path}: sha256 is {found[:12]}…, card.json says {expected[:12]}…; restore the file.")
    return path
