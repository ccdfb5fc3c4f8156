"""What a checkpoint holds, under our names: wrappers, prefixes and other people's naming undone.

Nothing is executed: .pt and .pth files go through the restricted unpickler, everything else is safetensors.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mulosd.errors import DataError, join_some
from mulosd.files.publish import file_sha256
from mulosd.files.reading import is_file, parse_json, read_file
from mulosd.files.unpickle import plain, unpickle

# Where the reference scripts look for weights, in their order; those of the tokenizer take averaged ones first.
PLACES = ("model", "module", "state_dict", "ema")
VQ_PLACES = ("ema", "model", "module", "state_dict")
# Segments that DDP, FSDP, checkpointing and torch.compile put into names.
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

# LANTERN's copies of LlamaGen (their code, files not seen): name there -> name here; q, k, v are the rows of wqkv.
LANTERN = (
    (r"model\.embed_tokens\.", "tok_embeddings."),
    (r"model\.cls_embedding\.", "cls_embedding."),
    (r"model\.norm\.", "norm."),
    (r"lm_head\.", "output."),
    (r"model\.(layers\.\d+)\.self_attn\.o_proj\.", r"\1.attention.wo."),
    (r"model\.(layers\.\d+)\.mlp\.gate_proj\.", r"\1.feed_forward.w1."),
    (r"model\.(layers\.\d+)\.mlp\.up_proj\.", r"\1.feed_forward.w3."),
    (r"model\.(layers\.\d+)\.mlp\.down_proj\.", r"\1.feed_forward.w2."),
    (r"model\.(layers\.\d+)\.input_layernorm\.", r"\1.attention_norm."),
    (r"model\.(layers\.\d+)\.post_attention_layernorm\.", r"\1.ffn_norm."),
)


@dataclass(frozen=True)
class Source:
    """A checkpoint: its tensors, the arguments stored beside them as JSON values ({} where none), its size name
    (Tar's files; "" elsewhere), the key that it was under ("" where bare) and the sha256 of each file that was read."""

    tensors: dict[str, Tensor]
    args: dict[str, Any]
    name: str
    wrapper: str
    files: dict[str, str]


def read_source(path: Path, places: Sequence[str] = PLACES) -> Source:
    """Read a .pt / .pth file, a safetensors file or a folder of safetensors files; DataError where none is there.

    places: keys that weights may be under; the first one present counts.
    """
    files = _files(path)
    if path.is_dir() or path.suffix == ".safetensors":
        found: dict[str, Any] = {}
        for file in files:
            part = _safetensors(file)
            _refuse_doubles(path, [*found, *part])
            found |= part
        content: Any = found
    else:
        content = unpickle(path)
    unwrapped = unwrap(content, path, places)
    tensors = from_lantern(clean_names(unwrapped.tensors, path), path)
    return replace(unwrapped, tensors=tensors, files={f.name: file_sha256(f) for f in files})


def unwrap(content: Any, path: Path, places: Sequence[str] = PLACES) -> Source:
    """What an unpickled file holds, under its own names.

    It is under the first of `places` that is present (`module` is DeepSpeed's), else it is the bare mapping (FSDP);
    inside it may be Tar's {"name", "args", "sd"}.
    """
    outer = content if isinstance(content, Mapping) else {}
    wrapper = next((key for key in places if isinstance(outer.get(key), Mapping)), "")
    inner = outer[wrapper] if wrapper else outer
    args, name = outer.get("args") if wrapper else None, ""
    if isinstance(inner.get("sd"), Mapping):
        args, name, inner = inner.get("args"), str(inner.get("name", "")), inner["sd"]
    if not inner or not all(isinstance(value, Tensor) for value in inner.values()):
        raise DataError(
            f"{path}: no state dict there (its keys: {join_some(inner) or 'none'}); give a file of one model, its "
            "tensors bare or under model, module, state_dict, ema or model.sd."
        )
    return Source({str(key): value for key, value in inner.items()}, plain(args or {}), name, wrapper, {})


def clean_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Names without wrappers: `module.` or `model.` in front of all of them, `WRAPPERS` anywhere."""
    if any(key.endswith("_flat_param") for key in tensors):
        raise DataError(f"{path}: a shard of an FSDP run; consolidate the shards to a full state dict first.")
    names = {key: ".".join(part for part in key.split(".") if part not in WRAPPERS) for key in tensors}
    for prefix in ("module.", "model."):
        if all(name.startswith(prefix) for name in names.values()):
            names = {key: name.removeprefix(prefix) for key, name in names.items()}
    _refuse_doubles(path, names.values())
    return {names[key]: value for key, value in tensors.items()}


def from_lantern(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Tensors in LANTERN's Hugging Face naming under LlamaGen's names; others as they are."""
    if not {"model.embed_tokens.weight", "lm_head.weight"} <= tensors.keys():
        return tensors
    renamed: dict[str, Tensor] = {}
    for key, value in tensors.items():
        block = re.fullmatch(r"model\.(layers\.\d+)\.self_attn\.[qkv]_proj\.weight", key)
        if block:
            name, value = f"{block[1]}.attention.wqkv.weight", _fused(tensors, f"model.{block[1]}.self_attn", path)
        else:
            name = next((re.sub(old, new, key) for old, new in LANTERN if re.match(old, key)), key)
        renamed[name] = value
    return renamed


def _fused(tensors: Mapping[str, Tensor], prefix: str, path: Path) -> Tensor:
    names = [f"{prefix}.{part}_proj.weight" for part in "qkv"]
    absent = [name for name in names if name not in tensors]
    if absent:
        raise DataError(f"{path}: missing tensors: {', '.join(absent)}; get the file again.")
    return torch.cat([tensors[name] for name in names])


def _files(path: Path) -> list[Path]:
    """The files of a checkpoint; in a folder those that its index names, or its only safetensors file."""
    if not os.path.isdir(path):
        if not is_file(path):
            raise DataError(f"{path}: there is no such file; give a checkpoint file or folder.")
        return [path]
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise DataError(
                f"{path}: {len(found)} safetensors files and no {index.name}; give a folder with one of either, "
                "or the file itself."
            )
        return found
    try:
        named = list(parse_json(read_file(index))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{index}: not an index of safetensors files ({error!r}); get it again.") from error
    wrong = [name for name in named if not _is_in(path, name)]
    if wrong or not named:
        listed = ", ".join(ascii(name)[:40] for name in wrong[:3]) or "no file"
        raise DataError(f"{index}: names {listed}, which {path} does not hold; get the folder again.")
    names = sorted(set(named))
    return [path / name for name in names]


def _is_in(folder: Path, name: Any) -> bool:
    """Whether `name` is the bare name of a file of the folder."""
    return isinstance(name, str) and Path(name).name == name != "" and is_file(folder / name)


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        size = path.stat().st_size
        raise DataError(f"{path}: not a whole safetensors file ({size:,} bytes, {error}); get it again.") from error


def _refuse_doubles(path: Path, names: Iterable[str]) -> None:
    seen: set[str] = set()
    doubled = sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]
    if doubled:
        raise DataError(f"{path}: two tensors for {join_some(doubled)}; give a file of one model.")
