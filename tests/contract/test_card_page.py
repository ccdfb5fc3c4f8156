"""`docs/tiny.md` is the page of the shipped card, word for word: numbers in the documents cannot drift from it."""

from pathlib import Path

import pytest

from dashboards.card import card_markdown
from mulosd.families.card import family_folder, read_family

PAGE = Path(__file__).parents[2] / "docs" / "tiny.md"


def test_the_page_is_the_cards() -> None:
    folder = family_folder("tiny")
    if not (folder / "card.json").exists():
        pytest.skip("no family is shipped in mulosd/assets/tiny yet")
    card = read_family(folder)
    if not card["quality"]:
        pytest.skip("the shipped family is not measured yet: mulosd measure tiny --out DIR")
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert text == card_markdown(card), "run `mulosd card tiny > docs/tiny.md`"
