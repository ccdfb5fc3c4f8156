"""Families and targets: cards (light, JSON) and loaded targets that decode prompts.

A family folder holds `card.json` and the safetensors files that it names. The card is the source of
every shape: grid, prefix, rotary scale, codebook, sampler preset, and the hashes of the files. torch is
imported only when a target is loaded, so that planning stays light.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulosd.errors import ConfigError, DataError, unknown_name

if TYPE_CHECKING:
    from mulosd.models.target import Target

SHIPPED = ("tiny",)


@dataclass(frozen=True)
class Card:
    """What is known of a target without loading it.

    grid: side of the token grid; image_px: side of the image; draft_grid None: the target has no drafter.
    sampler: preset with guidance, temperature, top_k, top_p, draft_guidance. content_hash covers everything that
    changes an image: file hashes, configurations, preset.
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

    @property
    def num_tokens(self) -> int:
        """Tokens N of one image."""
        return self.grid * self.grid

    @property
    def ratio(self) -> int | None:
        """Target grid over draft grid."""
        return self.grid // self.draft_grid if self.draft_grid else None


def family_folder(family: str) -> Path:
    """Folder of a shipped family."""
    return Path(str(resources.files("mulosd"))) / "assets" / family


def read_family(folder: Path) -> dict[str, Any]:
    """The parsed card.json of a family folder."""
    path = folder / "card.json"
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no family card there; train one with `mulosd train tiny --out {folder}`.") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON ({error}); restore the card that belongs to the weights.") from error
    return data


def target_ids() -> list[str]:
    """Ids of all shipped targets."""
    return [target for family in SHIPPED for target in read_family(family_folder(family))["targets"]]


def load_card(target_id: str, folder: Path | None = None) -> Card:
    """The card of a target; `folder` names another family folder than the shipped ones."""
    folders = [folder] if folder else [family_folder(family) for family in SHIPPED]
    known: list[str] = []
    for place in folders:
        data = read_family(place)
        known += data["targets"]
        if target_id in data["targets"]:
            return _card(target_id, data, place)
    raise unknown_name("target", target_id, known)


def _card(target_id: str, data: dict[str, Any], folder: Path) -> Card:
    entry = data["targets"][target_id]
    parts = ["vq", entry["model"], *([entry["drafter"]] if entry["drafter"] else [])]
    identity = {name: {key: data["parts"][name][key] for key in ("config", "sha256")} for name in parts}
    text = json.dumps([identity, entry["sampler"]], sort_keys=True)
    model = data["parts"][entry["model"]]["config"]
    _check_fit(target_id, data, folder)
    return Card(
        target_id=target_id,
        family=data["family"],
        grid=model["grid"],
        image_px=entry["image_px"],
        codebook_size=model["vocab_size"],
        draft_grid=data["parts"][entry["drafter"]]["config"]["grid"] if entry["drafter"] else None,
        sampler=entry["sampler"],
        content_hash=hashlib.sha256(text.encode()).hexdigest(),
        folder=folder,
        raw=data,
    )


def _check_fit(target_id: str, data: dict[str, Any], folder: Path) -> None:
    """Refuse parts that cannot work together: another codebook, or grids without a whole ratio."""
    entry, parts = data["targets"][target_id], data["parts"]
    names = [entry["model"], *([entry["drafter"]] if entry["drafter"] else [])]
    known = parts["vq"]["config"]["codebook_size"]
    for name in names:
        codes = parts[name]["config"]["vocab_size"]
        if codes != known:
            raise DataError(
                f"{folder / 'card.json'}: {name} draws {codes} codes, vq has {known}; restore parts of one family."
            )
    grids = [parts[name]["config"]["grid"] for name in names]
    if grids[0] % grids[-1]:
        raise DataError(
            f"{folder / 'card.json'}: the {grids[0]}-cell grid of {target_id} is no multiple of its drafter's "
            f"{grids[-1]}; name a drafter whose grid divides it."
        )


def check_part(card: Card, name: str) -> Path:
    """Path of a part's weights after its hash was compared with the card."""
    entry = card.raw["parts"][name]
    if Path(entry["file"]).name != entry["file"]:
        raise ConfigError(
            f"{card.folder / 'card.json'}: parts.{name}.file = {entry['file']!r} must be a bare file name."
        )
    path = card.folder / str(entry["file"])
    if not path.is_file():
        raise DataError(f"{path}: weights of {card.target_id} are missing; restore the file named by card.json.")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry["sha256"]:
        raise DataError(f"{path}: sha256 is {found[:12]}…, card.json says {entry['sha256'][:12]}…; restore the file.")
    return path


def load_target(target_id: str, *, device: str = "cpu", dtype: str = "float32", folder: Path | None = None) -> "Target":
    """Load weights onto a device. dtype: float32, float64 or bfloat16."""
    from mulosd.models.target import load

    return load(load_card(target_id, folder), device=device, dtype=dtype)
