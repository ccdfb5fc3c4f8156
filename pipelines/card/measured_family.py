"""A trained family under measurement, as the `families` module of a sweep.

The folder comes from the environment, as workers are other processes. Guidance is not part of a card's identity here:
measuring chooses it, each method of the measurement names its own, and writing the choice into the card must not make
the images made with it look stale. Whatever else changes an image (weights, configurations, the rest of the preset) is.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mulosd.families import card as families
from mulosd.families.card import Card
from mulosd.files.publish import canonical_json

FOLDER = "MULOSD_MEASURED_FAMILY"
CHOSEN = ("guidance", "draft_guidance")  # preset fields that a measurement chooses


@contextmanager
def measured(folder: Path) -> Iterator[None]:
    """Inside the block the functions below answer for the family in `folder`."""
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(folder.absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLDER]
        else:
            os.environ[FOLDER] = before


def target_ids() -> list[str]:
    """Ids of the family's targets."""
    return list(families.read_family(_folder())["targets"])


def load_card(target_id: str) -> Card:
    """The target's card with guidance 1 (none) in its preset and a content hash that leaves guidance out."""
    card = families.load_card(target_id, _folder())
    entry = card.raw["targets"][target_id]
    parts = [name for name in ("vq", entry["model"], entry["drafter"]) if name]
    identity = {name: {key: card.raw["parts"][name][key] for key in ("config", "sha256")} for name in parts}
    kept = {key: value for key, value in card.sampler.items() if key not in CHOSEN}
    digest = hashlib.sha256(canonical_json([identity, kept])).hexdigest()
    return replace(card, sampler={**kept, **dict.fromkeys(CHOSEN, 1.0)}, content_hash=digest)


def load_target(target_id: str, *, device: str = "cpu", dtype: str = "float32") -> Any:
    """The loaded target."""
    from mulosd.targets.loading import load

    return load(load_card(target_id), device=device, dtype=dtype)


def _folder() -> Path:
    return Path(os.environ[FOLDER])
