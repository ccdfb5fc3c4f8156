"""Cards of families and targets: what is known of a target without loading it. No torch.

A family folder holds `card.json` and the safetensors files that it names. The card is the source of
every shape: grid, prefix, rotary scale, codebook, sampler preset, and the hashes of the files. `tiny` ships
with its weights. A released family ships as a data file of the same form without hashes (`assets/families`);
its weights are in a folder of the user, where `mulosd convert` wrote them and completed the card. Any other
folder there with a card is a family too.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mulosd.errors import DataError, unknown_name
from mulosd.files.home import home
from mulosd.files.reading import parse_json, read_file, reason_of

SHIPPED = ("tiny",)  # families whose weights are part of the package
WEIGHTS = "MULOSD_WEIGHTS"  # environment variable: the folder of the converted families
SAMPLER = ("guidance", "temperature", "top_k", "top_p", "draft_guidance")
ROUNDINGS = ("nearest", "down")  # of pixels to bytes: LlamaGen's, Tar's
IDENTITY = ("architecture", "compute_dtype", "config", "sha256")  # of a part: what changes an image


class _Allowed(NamedTuple):
    """Values of a preset's setting: a test and its description."""

    holds: Callable[[float], bool]
    text: str


PRESET_RANGES = {
    "guidance": _Allowed(lambda value: value >= 1, "a number from 1 (no guidance) on"),
    "temperature": _Allowed(lambda value: value >= 0, "a number from 0 on"),
    "top_k": _Allowed(lambda value: value >= 0, "a whole number from 0 (off) on"),
    "top_p": _Allowed(lambda value: 0 < value <= 1, "a number above 0, at most 1 (off)"),
}


@dataclass(frozen=True)
class Card:
    """What is known of a target without loading it.

    grid: side of the token grid; image_px: side of the image; draft_grid None: nothing can draft for the target.
    drafters: what can draft for it, as values of the knob `drafter`. sampler: preset with guidance, temperature, top_k,
    top_p, draft_guidance. content_hash covers everything that changes an image: file hashes, configurations, preset; it
    is provisional while parts are `missing` (their names).
    """

    target_id: str
    family: str
    grid: int
    image_px: int
    codebook_size: int
    draft_grid: int | None
    sampler: dict[str, float]
    content_hash: str
    folder: Path
    raw: dict[str, Any]
    missing: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ("checkpoint",)

    @property
    def num_tokens(self) -> int:
        """Tokens N of one image."""
        return self.grid * self.grid

    @property
    def ratio(self) -> int | None:
        """Target grid over draft grid."""
        return self.grid // self.draft_grid if self.draft_grid else None

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that the target is made of, tokenizer first."""
        return part_names(self.raw["targets"][self.target_id])

    @property
    def encoders(self) -> dict[str, dict[str, Any]]:
        """Name -> what identifies it, of the parts that make conditions of prompts; {} for the words of tiny."""
        return {
            name: _identity(self.raw["parts"][name]) for name in self.raw["targets"][self.target_id].get("encoders", ())
        }

    @property
    def condition(self) -> dict[str, Any]:
        """Settings of the encoders where they are not the released ones, such as Tar's `scale`."""
        return dict(self.raw["targets"][self.target_id].get("condition", {}))

    @property
    def pixel_rounding(self) -> str:
        """How pixels become bytes, one of ROUNDINGS (`mulosd.targets.target.to_uint8`)."""
        return str(self.raw["targets"][self.target_id].get("pixel_rounding", ROUNDINGS[0]))

    @property
    def prefix_len(self) -> int:
        """Prefix rows that the model was trained with."""
        return int(self.raw["parts"][self.raw["targets"][self.target_id]["model"]]["config"]["prefix_len"])

    @property
    def num_classes(self) -> int | None:
        """Classes that a class-conditional target generates; None for a target that takes text."""
        count: int | None = self.raw["parts"][self.raw["targets"][self.target_id]["model"]]["config"].get("num_classes")
        return count

    @property
    def fetch_hint(self) -> str:
        """What is missing, where it belongs and how to get it."""
        sources = (self.raw["parts"][name].get("source", {}) for name in self.missing)
        listed = ", ".join(f"{name} ({_origin(source)})" for name, source in zip(self.missing, sources, strict=True))
        parts = " ".join(f"--part {name}" for name in self.missing)
        return (
            f"{self.target_id} needs parts that {self.folder} does not hold: {listed}; get the files with "
            f"`mulosd fetch {self.family} {parts}` or by hand, then run `mulosd convert FILE --family {self.family} "
            f"--part {self.missing[0]}` for each part (docs/checkpoints.md)."
        )


def weights_folder() -> Path:
    """Folder of converted families: $MULOSD_WEIGHTS, else ~/.cache/mulosd."""
    return Path(os.environ.get(WEIGHTS) or home() / ".cache" / "mulosd").absolute()


def family_folder(family: str) -> Path:
    """Folder of a family's card and weights, whether or not it is there."""
    return _assets() / family if family in SHIPPED else weights_folder() / family


def released_families() -> dict[str, Path]:
    """Name -> data file of every family that ships without its weights."""
    return {path.stem: path for path in sorted((_assets() / "families").glob("*.json"))}


def read_family(folder: Path) -> dict[str, Any]:
    """The parsed card.json of a family folder."""
    path = folder / "card.json"
    if not path.is_file():
        raise DataError(f"{path}: no family card there; train one with `mulosd train tiny --out {folder}`.")
    return read_card(path)


def read_card(path: Path) -> dict[str, Any]:
    """A card or family file; DataError unless it is a JSON object with family, parts and targets."""
    try:
        data = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: not valid JSON ({reason_of(error)}); restore the card that belongs to the weights."
        ) from error
    for key in ("parts", "targets"):
        if not isinstance(require(data, path, key), dict):
            raise DataError(f"{path}: {key} must map names to entries; restore the card that belongs to the weights.")
    require(data, path, "family")
    return data  # type: ignore[no-any-return]


def families() -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder, card) of every known family: shipped, released, and whatever else is in the weights folder."""
    for name in SHIPPED:
        yield family_folder(name), read_family(family_folder(name))
    released = released_families()
    for name, path in released.items():
        yield family_folder(name), overlay(read_card(path), family_folder(name))
    for path in sorted(weights_folder().glob("*/card.json")):
        if path.parent.name not in released:
            yield path.parent, read_card(path)


def overlay(template: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A family file with the parts of it that were converted into `folder`."""
    path = folder / "card.json"
    done = read_card(path)["parts"] if path.is_file() else {}
    return {**template, "parts": {**template["parts"], **{name: done[name] for name in done if "sha256" in done[name]}}}


def target_ids() -> list[str]:
    """Ids of all known targets, with or without their weights."""
    return [target for _, data in families() for target in data["targets"]]


def load_card(target_id: str, folder: Path | None = None) -> Card:
    """The card of a target; `folder` names one family folder to look in instead of all known families."""
    known: list[str] = []
    for place, data in [(folder, read_family(folder))] if folder else families():
        known += data["targets"]
        if target_id in data["targets"]:
            return _card(target_id, data, place)
    raise unknown_name("target", target_id, known)


def require(data: Any, where: Path, *keys: str) -> Any:
    """data[keys[0]][keys[1]]...; DataError that names the first key that is not there."""
    for i, key in enumerate(keys):
        if not isinstance(data, Mapping) or key not in data:
            raise DataError(f"{where}: {'.'.join(keys[: i + 1])} is missing; restore the card of these weights.")
        data = data[key]
    return data


def part_names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Parts of a target's card entry: tokenizer, model, drafter, text encoders."""
    drafter = [entry["drafter"]] if entry["drafter"] else []
    return ("vq", entry["model"], *drafter, *entry.get("encoders", ()))


def check_target(target_id: str, data: dict[str, Any], path: Path) -> None:
    """DataError unless a target's entry and parts are all there and can work together. path: of the card or file."""
    for key in ("model", "drafter", "image_px", *(("sampler", name) for name in SAMPLER)):
        require(data, path, "targets", target_id, *([key] if isinstance(key, str) else key))
    entry = data["targets"][target_id]
    rounding = entry.get("pixel_rounding", ROUNDINGS[0])
    if rounding not in ROUNDINGS:
        raise DataError(
            f"{path}: targets.{target_id}.pixel_rounding = {rounding!r}; allowed: {', '.join(ROUNDINGS)}. "
            "Restore the card."
        )
    _check_preset(entry["sampler"], f"{path}: targets.{target_id}.sampler")
    for name in part_names(entry):
        require(data, path, "parts", name, "config")
    _check_fit(target_id, data, path)


def _check_preset(preset: Mapping[str, Any], where: str) -> None:
    """Refuse sampling settings that no method would take as knobs (`mulosd.methods`)."""
    for key in SAMPLER:
        value, allowed = preset[key], PRESET_RANGES[key.removeprefix("draft_")]
        is_number = isinstance(value, int if key == "top_k" else int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and allowed.holds(value)):
            raise DataError(f"{where}.{key} = {value!r} is not allowed; give {allowed.text}. Correct the card.")


def _card(target_id: str, data: dict[str, Any], folder: Path) -> Card:
    path = folder / "card.json"
    check_target(target_id, data, path)
    entry, parts = data["targets"][target_id], data["parts"]
    names = part_names(entry)
    model = _number(data, path, entry["model"], "grid")
    own = [grid for grid in _grids(data, target_id) if grid < model]
    drafter = _number(data, path, entry["drafter"], "grid") if entry["drafter"] else max(own, default=None)
    identity = {name: _identity(parts[name]) for name in names}
    settings = [entry[key] for key in ("sampler", "condition", "pixel_rounding") if key in entry]
    text = json.dumps([identity, *settings], sort_keys=True)
    return Card(
        target_id=target_id,
        family=data["family"],
        grid=model,
        image_px=entry["image_px"],
        codebook_size=parts[entry["model"]]["config"]["vocab_size"],
        draft_grid=drafter,
        sampler=entry["sampler"],
        content_hash=hashlib.sha256(text.encode()).hexdigest(),
        folder=folder,
        raw=data,
        missing=tuple(name for name in names if "sha256" not in parts[name]),
        drafters=("checkpoint",) * bool(entry["drafter"]) + ("self",) * (drafter in own),
    )


def _identity(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part[key] for key in IDENTITY if key in part}


def _check_fit(target_id: str, data: dict[str, Any], path: Path) -> None:
    """Refuse parts that cannot work together: another codebook, or grids without a whole ratio."""
    entry = data["targets"][target_id]
    names = [entry["model"], *([entry["drafter"]] if entry["drafter"] else [])]
    known = _number(data, path, "vq", "codebook_size")
    for name in names:
        codes = _number(data, path, name, "vocab_size")
        if codes != known:
            raise DataError(f"{path}: {name} draws {codes} codes, vq has {known}; restore parts of one family.")
    grids = [_number(data, path, name, "grid") for name in names]
    if grids[0] % grids[-1]:
        raise DataError(
            f"{path}: the {grids[0]}-cell grid of {target_id} is not a multiple of its drafter's "
            f"{grids[-1]}; name a drafter whose grid divides it."
        )


def _grids(data: Mapping[str, Any], target_id: str) -> tuple[int, ...]:
    """All grids that a target's model serves, if the card says that it serves several; else ()."""
    config = data["parts"][data["targets"][target_id]["model"]]["config"]
    return tuple(config.get("grids", ())) if data.get("multi_grid") else ()


def _number(data: dict[str, Any], path: Path, part: str, key: str) -> int:
    value = require(data, path, "parts", part, "config", key)
    if not isinstance(value, int) or value < 1:
        raise DataError(f"{path}: parts.{part}.config.{key} = {value!r} must be a positive integer; restore the card.")
    return value


def _origin(source: Mapping[str, Any]) -> str:
    files = source.get("file") or "folder"
    return f"{files} of {source['repo']}" if "repo" in source else files


def _assets() -> Path:
    return Path(str(resources.files("mulosd"))) / "assets"
