"""Answers to the questions about scenes, from the scenes detector and one rule for the background.

It sees the image and the text of a question, as any answerer does. Instances count from GenEval's threshold on, in
counting from its stricter one; a word about an object is read from its most confident instance, about several objects
from all; relations are GenEval's (docs/metrics.md "GenEval").
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from evaluators.geneval.rules import Thresholds, relations, select_instances
from evaluators.geneval.types import Detection, PatternDetector
from mulosd.scenes import vocabulary as voc
from mulosd.types import Image

VERSION = "1"

# RGB distance to a tone from which a background shows none of them; the nearest two tones are 62 apart.
MAX_TONE_DISTANCE = 40.0
_RIM = 1.0 / 32.0  # of the side: how far an object's blurred outline may reach beyond its mask

_COUNTS = {word: count for count, word in voc.COUNT_WORDS.items()}
_SINGULARS = {voc.plural(shape): shape for shape in voc.SHAPES}


@dataclass(frozen=True)
class _View:
    """What was seen in one image: kept instances by class, those for counting, the background's tone ("" for none)."""

    image: Image
    kept: dict[str, list[Detection]]
    counted: dict[str, list[Detection]]
    tone: str


class ScenesVqa:
    """Answers "yes" or "no" to the five kinds of questions about scenes; others it cannot judge."""

    def __init__(self, detector: PatternDetector, *, thresholds: Thresholds | None = None) -> None:
        self._detector = detector
        self._thresholds = thresholds or Thresholds()
        self._last: tuple[bytes, _View] | None = None

    def identity(self) -> dict[str, Any]:
        """Version, detector, thresholds and the background's rule."""
        return {
            "name": "scenes-vqa",
            "version": VERSION,
            "detector": self._detector.identity(),
            "thresholds": self._thresholds.to_json(),
            "background": f"median outside the objects, nearest tone within {MAX_TONE_DISTANCE}",
        }

    def cannot_answer(self, question: str) -> str:
        """Why the question is none about scenes."""
        known = any(form.fullmatch(question) for form, _ in _FORMS)
        return "" if known else f"the scenes answerer does not understand {question!r}"

    def answer(self, image: Image, question: str) -> str:
        """ "yes" or "no"; image: uint8 RGB [H, W, 3]. Raises ValueError for a question that it cannot judge."""
        for form, rule in _FORMS:
            match = form.fullmatch(question)
            if match:
                holds = rule(self._detector, self._thresholds, self._view(image), match.groups())
                return "yes" if holds else "no"
        raise ValueError(self.cannot_answer(question))

    def _view(self, image: Image) -> _View:
        """What is in the image; questions about one image come in a row, so the last view is kept."""
        key = hashlib.sha256(str(image.shape).encode() + image.tobytes()).digest()
        if self._last is None or self._last[0] != key:
            found = self._detector.detect(image)
            kept, counted = (select_instances(found, tag, self._thresholds) for tag in ("", "counting"))
            self._last = (key, _View(image, kept, counted, background_tone(image, found)))
        return self._last[1]


def background_tone(image: Image, found: Sequence[Detection]) -> str:
    """The background word nearest to the median colour outside the objects; "" where none is near or nothing is left.

    image: uint8 RGB [H, W, 3]; found: detections with masks [H, W].
    """
    covered: npt.NDArray[np.bool_] = np.zeros(image.shape[:2], bool)
    for one in found:
        if one.mask is not None:
            covered |= one.mask
    rim = round(max(image.shape[:2]) * _RIM)
    if rim and covered.any():
        covered = ndimage.binary_dilation(covered, iterations=rim)
    pixels = image[~covered]
    if not len(pixels):
        return ""
    middle = np.median(pixels, axis=0)
    distances = {word: float(np.linalg.norm(middle - np.array(tone))) for word, tone in voc.BACKGROUNDS.items()}
    nearest = min(distances, key=lambda word: distances[word])
    return nearest if distances[nearest] <= MAX_TONE_DISTANCE else ""


Groups = Sequence[str | None]
Rule = Callable[[PatternDetector, Thresholds, _View, Groups], bool]


def _has_background(detector: PatternDetector, limits: Thresholds, view: _View, words: Groups) -> bool:
    return view.tone == words[0]


def _exists(detector: PatternDetector, limits: Thresholds, view: _View, words: Groups) -> bool:
    return bool(view.kept.get(_shape(words)))


def _are_as_many(detector: PatternDetector, limits: Thresholds, view: _View, words: Groups) -> bool:
    return len(view.counted.get(_SINGULARS[str(words[1])], ())) == _COUNTS[str(words[0])]


def _looks(detector: PatternDetector, limits: Thresholds, view: _View, words: Groups) -> bool:
    one, _, word = words
    found = view.kept.get(_shape(words), [])
    asked = found[:1] if one else found
    read = detector.color if word in voc.COLORS else detector.pattern
    return bool(asked) and all(read(view.image, each) == word for each in asked)


def _stands(detector: PatternDetector, limits: Thresholds, view: _View, words: Groups) -> bool:
    subject, relation, anchor = (str(word) for word in words)
    sides = [view.kept.get(name, [])[:1] for name in (subject, anchor)]
    return all(sides) and relation in relations(sides[0][0].box, sides[1][0].box, limits.position)


def _shape(words: Groups) -> str:
    """The class of a singular (first group) or plural (second group)."""
    return str(words[0] or _SINGULARS[str(words[1])])


def _any(words: Sequence[str]) -> str:
    return f"({'|'.join(words)})"


_ONE, _MANY = _any(voc.SHAPES), _any(tuple(_SINGULARS))
_FORMS: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(form), rule)
    for form, rule in (
        (rf"Is the background {_any(tuple(voc.BACKGROUNDS))}\?", _has_background),
        (rf"(?:Is there a {_ONE}|Are there {_MANY})\?", _exists),
        (rf"Are there {_any(tuple(_COUNTS))} {_MANY}\?", _are_as_many),
        (rf"(?:Is the {_ONE}|Are the {_MANY}) {_any((*voc.COLORS, *voc.PATTERNS))}\?", _looks),
        (rf"Is the {_ONE} {_any(voc.RELATIONS)} the {_ONE}\?", _stands),
    )
)
