"""Cards of the learned up-samplers: what is known of one without loading it. Light: no torch.

A family folder holds `upsamplers/<name>-<ratio>x.json` and the safetensors file that it names. Each belongs to one
tokenizer, whose hash its recipe carries.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, DataError
from mulosd.families.card import Card, require
from mulosd.files.publish import canonical_json, sha256_hex
from mulosd.files.reading import is_file, parse_json, read_file, reason_of

UPSAMPLERS = "upsamplers"  # their folder inside that of a family
PREFIX = "latent-"  # of the up-samplers that have such a card


@dataclass(frozen=True)
class LatentCard:
    """config: shape of the network; sha256: of the weights file. content_hash covers all that changes an image."""

    path: Path
    weights: Path
    config: dict[str, Any]
    sha256: str
    raw: dict[str, Any]

    @property
    def content_hash(self) -> str:
        """Hash of shape and weights."""
        return sha256_hex(canonical_json([self.config, self.sha256]))

    def read_weights(self) -> bytes:
        """The weights file; DataError where it is missing or is not the one that the card names."""
        if not is_file(self.weights):
            raise DataError(f"{self.weights}: the weights of this up-sampler are missing; restore the file.")
        data = self.weights.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise DataError(
                f"{self.weights}: sha256 is {found[:12]}…, {self.path.name} says {self.sha256[:12]}…; restore the file."
            )
        return data


def stem(name: str, ratio: int) -> str:
    """File name, without its ending, of the up-sampler `name` for a ratio."""
    return f"{name}-{ratio}x"


def find_latent(card: Card, name: str) -> LatentCard:
    """The card of up-sampler `name` (one of mulosd.methods.UPSAMPLERS) for a target.

    ConfigError where its family has none for the target's ratio, DataError where it belongs to another tokenizer.
    """
    folder = card.folder / UPSAMPLERS
    path = folder / f"{stem(name, card.ratio or 1)}.json"
    if not path.is_file():
        there = ", ".join(sorted(one.stem for one in folder.glob(f"{PREFIX}*.json"))) or "none"
        raise ConfigError(
            f"{card.target_id} has no up-sampler {path.stem} (in {folder}: {there}); choose another, or train it with "
            "`mulosd train upsampler` and put its two files there."
        )
    found = read_latent(path)
    belongs, here = (
        require(found.raw, path, "recipe", "tokenizer_sha256"),
        require(card.raw, path, "parts", "vq", "sha256"),
    )
    if belongs != here:
        raise DataError(
            f"{path}: was trained for the tokenizer {belongs[:12]}…, {card.family} has {here[:12]}…; its codes mean "
            "something else there: train it again with `mulosd train upsampler`."
        )
    return found


def read_latent(path: Path) -> LatentCard:
    """A card of `mulosd train upsampler`; DataError where it is none."""
    try:
        raw = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: not valid JSON ({reason_of(error)}); restore the card that belongs to the weights."
        ) from error
    config, sha256, file = (require(raw, path, key) for key in ("config", "sha256", "file"))
    if Path(file).name != file:
        raise DataError(f"{path}: file = {file!r} must be a bare file name.")
    return LatentCard(path, path.parent / file, config, sha256, raw)
