"""The picture of the house in docs/architecture.md shows every room there is, on its floor, and no other."""

import re
from pathlib import Path

from tests.contract.floors import FLOORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def drawn(page: str) -> dict[str, list[set[str]]]:
    """House -> its folders in the picture, floor by floor from the ground up."""
    picture = page.partition("## The house")[2].partition("## ")[0]
    floors: dict[str, list[set[str]]] = {house: [] for house in FLOORS}
    house = ""
    for line in (one for one in picture.splitlines() if one.startswith("    ")):
        names = re.findall(r"(?<![\w/])([a-z]+)/(?= |$)", line)
        if names and names[0] in (*FLOORS, "sweeps"):
            house = names.pop(0)
        if names and house in floors:
            floors[house].insert(0, set(names))
    return floors


def there(root: Path) -> dict[str, list[set[str]]]:
    """House -> its folders by the floors that the imports keep to."""
    folders = {
        house: [{room for room in floor if (root / house / room).is_dir()} for floor in floors]
        for house, floors in FLOORS.items()
    }
    return {house: [floor for floor in floors if floor] for house, floors in folders.items()}


def test_the_picture_is_right() -> None:
    assert drawn(PAGE) == there(ROOT)


def test_a_missing_and_a_misplaced_room_are_noticed() -> None:
    assert {"host", "plan"} in drawn(PAGE)["pipelines"]
    assert {"host", "plot"} in drawn(PAGE.replace("plan/ ", "plot/ "))["pipelines"]
    assert drawn(PAGE.replace("run/ ", "ran/ ").replace("store/ ", "run/ ").replace("ran/ ", "store/ ")) != there(ROOT)
