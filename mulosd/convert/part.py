"""`mulosd convert`: a checkpoint becomes one part of a family: safetensors plus its entry in the family's card.

Strict: a missing, unexpected or wrongly shaped tensor is refused by name; only `LEFTOVERS` are dropped. Nothing in
the weights of LlamaGen says which grid they were trained for (docs/checkpoints.md "Pitfalls"), so the grid is the
part's, and whatever hints at another one (file name, arguments, left-over tables, the same file twice) is refused.
"""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mulosd.convert.folder import UNUSED, check_folder, place_folder
from mulosd.convert.source import PLACES, VQ_PLACES, Source, read_source
from mulosd.errors import ConfigError, DataError, EnvironmentProblem, unknown_name
from mulosd.families.card import SHIPPED, check_target, families, family_folder, overlay, read_card, released_families
from mulosd.families.weight_files import num_values, tensors_of
from mulosd.files.folders import refuse_package
from mulosd.files.publish import canonical_json, file_sha256, publish_over, sha256_hex
from mulosd.files.reading import is_file
from mulosd.models.architectures import build_part, differences

CARD = "card.json"
RESERVED = ("sources",)  # names in the weights folder that are not families: where `mulosd fetch` puts its files
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")  # of families and parts, which become names of folders and files
_TABLES = r"freqs_cis|causal_mask|layers\.\d+\.attention\.kv_cache\.[kv]_cache"
LEFTOVERS = {  # architecture -> names that files may carry and no model uses
    "llamagen-t2i": _TABLES,
    "llamagen-c2i": _TABLES,
    "ar-dtok": _TABLES,
    "vq": r"quantize\.codebook_used",
    # text-to-image needs the half that turns ids into features, without its pooling head
    "ta-tok": r"teacher.*|(encoder|encode_task_layer|bottleneck\.in_linear|scale_layer|decoder\.\w+\.head)\..*",
}
FOLDERS = {"t5": ("t5",), "tar-llm": ("qwen2", "llava_qwen")}  # architecture -> model_type of its Hugging Face folder


@dataclass(frozen=True)
class Conversion:
    """What was (or would be) written: the part's file and card entry, and the names that were dropped."""

    path: Path
    entry: dict[str, Any]
    dropped: tuple[str, ...]


def family_file(family: str) -> dict[str, Any]:
    """The card without hashes of a released family, or of a family file (.json) of the user; checked names."""
    released = released_families()
    if not family.endswith(".json"):
        if family not in released:
            raise unknown_name("family", family, released, "--family")
        return read_card(released[family])
    data = read_card(Path(family))
    for name in (data["family"], *data["parts"]):
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == CARD:
            raise ConfigError(f"{family}: {name!r} names a family or part; allowed are a-z, 0-9 and . _ - inside.")
    taken = {target for _, other in families() if other["family"] != data["family"] for target in other["targets"]}
    doubled = sorted(taken & data["targets"].keys())
    if doubled or data["family"] in (*SHIPPED, *released, *RESERVED):
        raise ConfigError(f"{family}: {', '.join(doubled) or data['family']} is already known; choose another name.")
    for target in data["targets"]:
        check_target(target, data, Path(family))
    return data


def convert(source: Path, *, family: str, part: str, out: Path | None = None, is_dry: bool = False) -> Conversion:
    """Convert `source` into part `part` of a family below `out` (default: the family's folder of weights)."""
    template = family_file(family)
    if part not in template["parts"]:
        raise unknown_name("part", part, template["parts"], "--part")
    folder = out or family_folder(template["family"])
    refuse_package(folder)
    _refuse_another_family(folder, template)
    entry = dict(template["parts"][part])
    if entry.get("architecture") in FOLDERS:
        return _convert_folder(source, folder, template, part, is_dry=is_dry)
    read = read_source(source, VQ_PLACES if entry.get("architecture") == "vq" else PLACES)
    _check_grid(source, read, part, template, folder)
    kept, dropped = fit(read, part, entry, source)
    path = folder / f"{part}.safetensors"
    entry |= {
        "file": path.name,
        "dtype": ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in kept.values()})),
        "num_params": sum(value.numel() for value in kept.values()),
        "source": {**entry.get("source", {}), "files": read.files, "name": read.name, "args": read.args}
        | {"wrapper": read.wrapper},
    }
    if not is_dry:
        entry["sha256"] = _write(path, kept)
        _add(folder, template, part, entry)
    return Conversion(path, entry, dropped)


def _refuse_another_family(folder: Path, template: Mapping[str, Any]) -> None:
    """DataError where the folder's card is of another family, or of one that the family file describes otherwise."""
    path = folder / CARD
    if not is_file(path):
        return
    stored = read_card(path)
    differ = [] if stored["family"] == template["family"] else ["family"]
    if template["family"] not in released_families():
        differ += [
            f"targets.{name}" for name, entry in stored["targets"].items() if template["targets"].get(name) != entry
        ]
        parts = {name: _described(entry) for name, entry in template["parts"].items()}
        differ += [f"parts.{name}" for name, entry in stored["parts"].items() if parts.get(name) != _described(entry)]
    if differ:
        raise DataError(
            f"{path} is the card of another family ({differ[0]} differs), which is not overwritten; choose another "
            "name or another --out folder."
        )


def _described(part: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a family file says of a part before it is converted."""
    return part.get("architecture"), part.get("config")


def _convert_folder(source: Path, folder: Path, template: dict[str, Any], part: str, *, is_dry: bool) -> Conversion:
    """Take over a text encoder's Hugging Face folder: checked, hashed, linked or copied."""
    entry = dict(template["parts"][part])
    files = check_folder(source, entry["config"], FOLDERS[entry["architecture"]])
    hashes = {path.name: file_sha256(path) for path in files}
    weights = [path for path in files if path.suffix == ".safetensors"]
    dtypes = {dtype for path in weights for dtype, _ in tensors_of(path).values()}
    entry |= {
        "folder": part,
        "files": hashes,
        "dtype": ", ".join(sorted(dtypes)),
        "num_params": sum(num_values(path, UNUSED.get(entry["architecture"], ())) for path in weights),
    }
    if not is_dry:
        entry["sha256"] = sha256_hex(canonical_json(hashes))
        place_folder(files, folder / part)
        _add(folder, template, part, entry)
    return Conversion(folder / part, entry, ())


def fit(source: Source, part: str, entry: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """(tensors of the part, names that were dropped); DataError for whatever else does not fit its module."""
    with torch.device("meta"):
        expected = build_part(part, entry).state_dict()
    pattern = LEFTOVERS.get(entry.get("architecture", ""), "")
    dropped = tuple(key for key in source.tensors if key not in expected and re.fullmatch(pattern, key))
    kept = {key: value for key, value in source.tensors.items() if key not in dropped}
    wrong = differences(expected, kept)
    if wrong:
        raise DataError(f"{path}: not the tensors of {part}: {wrong}; give the file that belongs to this part.")
    return kept, dropped


def _check_grid(path: Path, source: Source, part: str, template: dict[str, Any], folder: Path) -> None:
    """Refuse a file that says of itself that it is another part, or was converted as another one."""
    parts = overlay(template, folder)["parts"]
    for name, other in parts.items():
        if name == part:
            continue
        if path.name in _published(other) - _published(parts[part]):
            raise DataError(f"{path}: a file of this name is {name}, not {part}; use --part {name} or rename it.")
        if set(other.get("source", {}).get("files", {}).values()) == set(source.files.values()):
            raise DataError(f"{path}: this same file was converted as {name}; give the one that belongs to {part}.")
    config = parts[part]["config"]
    for key, stated, expected in _stated(source, config):
        if stated != expected:
            raise DataError(
                f"{path}: it states {key} = {stated}, {part} has {expected}; choose the part it belongs to."
            )


def _published(entry: Mapping[str, Any]) -> set[str]:
    """Names under which a part is published: its file's, and the last of the repository of LANTERN's copy."""
    source = entry.get("source", {})
    return {str(source[key]).rpartition("/")[2] for key in ("file", "copy") if key in source}


def _stated(source: Source, config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(what, value in the file, value of the part) of everything that a file says of its shape."""
    args, num_tokens = source.args, config.get("grid", 0) ** 2
    expected = {
        "max_seq_len": num_tokens,
        "block_size": num_tokens,
        "cls_token_num": config.get("prefix_len"),
        "vocab_size": config.get("vocab_size"),
        "cond_dim": config.get("cond_dim"),
        "num_classes": config.get("num_classes"),
        "codebook_size": config.get("codebook_size"),
    }
    stated = [(f"args.{key}", args[key], value) for key, value in expected.items() if args.get(key) and value]
    if num_tokens and args.get("image_size"):
        side = args["image_size"] // args.get("downsample_size", 16)
        stated.append(("a grid (args.image_size / downsample_size)", side, config["grid"]))
    table = source.tensors.get("freqs_cis")
    if table is not None:
        stated.append(("positions (freqs_cis)", len(table), num_tokens + config.get("prefix_len", 0)))
    return stated


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Publish the tensors atomically; the sha256 of the file."""
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(_owned(tensors), temp)
        with temp.open("rb") as file:
            os.fsync(file.fileno())
        digest = file_sha256(temp)
        temp.replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written ({error.strerror or error}); free some space or choose another --out folder."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # where the folder could not be made, there is nothing to remove
            temp.unlink(missing_ok=True)
    return digest


def _owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with a storage of their own: files may hold views and ties, for which safetensors has no form."""
    owned, storages = {}, set()
    for key, value in tensors.items():
        storage = value.untyped_storage()
        is_whole = value.is_contiguous() and storage.nbytes() == value.nbytes and storage.data_ptr() not in storages
        storages.add(storage.data_ptr())
        owned[key] = value if is_whole else value.clone(memory_format=torch.contiguous_format)
    return owned


def _add(folder: Path, template: dict[str, Any], part: str, entry: dict[str, Any]) -> None:
    """Put the entry into the family's card, also when another conversion writes the card at the same time."""
    path = folder / CARD
    is_published = False
    while not is_published:
        base = sha256_hex(path.read_bytes()) if path.exists() else None
        data = overlay(template, folder)
        data["parts"][part] = entry
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        is_published = publish_over(path, text.encode("utf-8"), base)
