"""Frozen vocabulary of the scenes world: shapes, colours, patterns, backgrounds, words.

Changing anything here invalidates the shipped `tiny` weights: their cards carry `WORLD_VERSION`.
Pure constants; imports nothing.
"""

WORLD_VERSION = "scenes-1"

SHAPES = ("circle", "square", "triangle", "cross")

# RGB 0..255, channels in 60..205. With shading (+-14 grey) a stripe (+-50) leaves 0..255 by at most 14 above and 4
# below, and a dot (-75, between dots +25) by at most 29 below: clipped, which takes some contrast off the darkest
# channels and never a pattern.
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (205, 60, 60),
    "green": (60, 165, 75),
    "blue": (65, 95, 205),
    "yellow": (205, 190, 60),
    "purple": (150, 65, 185),
}

# Both patterns keep an object's mean colour, so nothing of them is left on the lowest grid.
PATTERNS = ("striped", "dotted")
PATTERN_PERIOD = 1.0 / 16.0  # of the image side, phase fixed to the image
PATTERN_AMPLITUDE = 50.0  # grey levels

BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (236, 236, 236),
    "grey": (172, 172, 172),
    "beige": (226, 208, 182),
    "dark": (56, 60, 72),
}

RELATIONS = ("left of", "right of", "above", "below")
COUNT_WORDS = {2: "two", 3: "three", 4: "four"}

# (shape, colour) pairs never drawn for training; reported apart.
HELD_OUT = frozenset({("triangle", "purple"), ("cross", "yellow"), ("square", "green")})

# Words that carry no information for a scene; the tokenizer drops them silently.
SILENT_WORDS = frozenset({"a", "an", "the", "photo", "of", "on", "in", "is", "with"})

WORDS = (
    *SHAPES,
    *COLORS,
    *PATTERNS,
    *(word for word in BACKGROUNDS if word not in COLORS),
    "background",
    "and",
    "left",
    "right",
    "above",
    "below",
    *COUNT_WORDS.values(),
    "s",
)
PAD_ID, NULL_ID, UNKNOWN_ID = 0, 1, 2
WORD_IDS = {word: index + 3 for index, word in enumerate(WORDS)}
NUM_WORD_IDS = len(WORDS) + 3
MAX_WORDS = 12


def plural(noun: str) -> str:
    """`circles`, `crosses`."""
    return noun + ("es" if noun.endswith("s") else "s")
