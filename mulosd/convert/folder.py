"""Hugging Face folders of text encoders, as `transformers` reads them: checked, then linked or copied. No torch."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.files.reading import parse_json, read_file, reason_of

# What an encoder and its tokenizer need. No .bin, .pt or .py: weights come from safetensors, nothing is executed.
KEPT = (".json", ".txt", ".model", ".safetensors", ".jinja")
UNUSED = {"t5": ("decoder.", "lm_head.")}  # architecture -> what of a folder's tensors is never loaded
RECORD = "sources.json"  # of `mulosd fetch`: how the files came, which must not change what they are


def check_folder(folder: Path, config: Mapping[str, Any], model_types: Sequence[str]) -> list[Path]:
    """The files to keep; DataError unless config.json is of one of `model_types` and agrees with `config`."""
    path = folder / "config.json"
    try:
        stated = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: not a configuration ({reason_of(error)}); give the model's Hugging Face folder."
        ) from error
    if not isinstance(stated, dict):
        raise DataError(f"{path}: not a configuration (no JSON object); give the model's Hugging Face folder.")
    expected = {"model_type": " or ".join(model_types), **config}
    wrong = {
        key: stated.get(key)
        for key, value in expected.items()
        if stated.get(key) not in (model_types if key == "model_type" else (value,))
    }
    if wrong:
        texts = [f"{key} = {value!r}, not {expected[key]!r}" for key, value in wrong.items()]
        raise DataError(f"{path}: {'; '.join(texts)}; give the folder of the model that the family names.")
    files = sorted(path for path in folder.iterdir() if is_kept(path.name) and path.is_file())
    if not any(path.suffix == ".safetensors" for path in files):
        raise DataError(
            f"{folder}: no safetensors files; pickled weights are not read, get the model's safetensors version."
        )
    return files


def is_kept(name: str) -> bool:
    """Whether an encoder needs the file of this name."""
    return "/" not in name and name.endswith(KEPT) and name != RECORD


def place_folder(files: Sequence[Path], target: Path) -> None:
    """Put the files into `target`, as hard links where the file system allows; a former `target` is replaced whole."""
    temp = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    old = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
    try:
        temp.mkdir(parents=True)
        for file in files:
            _link(file.resolve(), temp / file.name)
        if target.exists():
            target.rename(old)
        temp.rename(target)
    except OSError as error:
        raise EnvironmentProblem(
            f"{target} cannot be written ({error.strerror or error}); free some space or choose another --out folder."
        ) from error
    finally:
        for leftover in (temp, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
