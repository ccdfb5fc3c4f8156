"""The picture of the house in docs/architecture.md shows every room there is, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
HOUSES = ("pipelines", "evaluators", "dashboards", "mulosd")


def drawn(page: str) -> dict[str, set[str]]:
    """House -> its rooms in the picture."""
    picture = page.partition("## The house")[2].partition("## ")[0]
    rooms: dict[str, set[str]] = {house: set() for house in HOUSES}
    house = ""
    for line in (one for one in picture.splitlines() if one.startswith("    ")):
        for name in re.findall(r"(?<![\w/])([a-z]+)/(?= |$)", line):
            if name in (*HOUSES, "sweeps"):
                house = name
            elif house in rooms:
                rooms[house].add(name)
    return rooms


def there(root: Path) -> dict[str, set[str]]:
    """House -> its packages."""
    return {house: {path.parent.name for path in (root / house).glob("*/__init__.py")} for house in HOUSES}


def test_the_picture_shows_every_room() -> None:
    assert drawn(PAGE) == there(ROOT)


def test_a_missing_room_is_noticed() -> None:
    assert "plan" in drawn(PAGE)["pipelines"]
    assert drawn(PAGE.replace("plan/ ", "plot/ "))["pipelines"] ^ drawn(PAGE)["pipelines"] == {"plan", "plot"}
