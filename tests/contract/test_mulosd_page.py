"""docs/mulosd.md names every knob of MuLo-SD and every choice of it, and the files it points to are there."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin

from mulosd.methods import MuLoSD

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mulosd.md").read_text(encoding="utf-8")


def unnamed(page: str) -> set[str]:
    """Knobs, and values of knobs with few, that a page does not name in backticks; a default may go unsaid."""
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", page))))
    named |= {f"draft_{knob}" for knob in named if "their `draft_` forms" in page}
    choices = {
        value
        for field in fields(MuLoSD)
        if get_origin(field.type) is Literal
        for value in get_args(field.type)
        if value != field.default
    }
    return ({field.name for field in fields(MuLoSD)} | choices) - named


def test_every_knob_is_on_the_page() -> None:
    assert unnamed(PAGE) == set()


def test_a_missing_knob_is_seen() -> None:
    assert unnamed(PAGE.replace("island_window", "gone")) == {"island_window"}
    assert unnamed(PAGE.replace("raster-redraft", "gone")) == {"raster-redraft"}


def test_files_are_there() -> None:
    paths = {path for path in re.findall(r"`([\w./*-]+)`", PAGE) if "/" in path}
    assert len(paths) > 8
    assert [path for path in paths if not list(ROOT.glob(path))] == []
