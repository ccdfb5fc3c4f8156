"""`docs/tiny.md` is the page of the shipped card, word for word: numbers in the documents cannot drift from it."""

from pathlib import Path

from dashboards.card import card_markdown
from mulosd.families.card import family_folder, read_family

PAGE = Path(__file__).parents[2] / "docs" / "tiny.md"


def test_the_page_is_the_cards() -> None:
    card = read_family(family_folder("tiny"))
    assert card["quality"], "the shipped family is not measured: mulosd measure tiny --out DIR"
    assert PAGE.read_text(encoding="utf-8") == card_markdown(card), "run `mulosd card tiny > docs/tiny.md`"
