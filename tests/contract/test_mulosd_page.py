"""docs/mulosd.md names every knob of MuLo-SD and every choice of it, and the files it points to are there."""

import re
from pathlib import Path

from mulosd.methods import MuLoSD, declared_knobs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mulosd.md").read_text(encoding="utf-8")


def unnamed(page: str) -> set[str]:
    """Knobs, and values of knobs with few, that a page does not name in backticks; a default may go unsaid."""
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]+)`", page))))
    named |= {f"draft_{knob}" for knob in named if "their `draft_` forms" in page}
    knobs = declared_knobs(MuLoSD)
    choices = {
        value
        for knob in knobs.values()
        if not knob.doc.choices
        for value in knob.choices or ()
        if value != knob.default
    }
    return ({*knobs} | choices) - named


def test_every_knob_is_on_the_page() -> None:
    assert unnamed(PAGE) == set()


def test_a_missing_knob_is_seen() -> None:
    assert unnamed(PAGE.replace("island_window", "gone")) == {"island_window"}
    assert unnamed(PAGE.replace("raster-redraft", "gone")) == {"raster-redraft"}


def test_files_are_there() -> None:
    paths = {path for path in re.findall(r"`([\w./*-]+)`", PAGE) if "/" in path}
    assert len(paths) > 8
    assert [path for path in paths if not list(ROOT.glob(path))] == []
