"""Accuracy of the whole reading chain on images whose scenes are known, per task, with Wilson limits.

For renderings it measures the detector; for reconstructions of a tokenizer, the tokenizer; for samples, the model.
The verdict is GenEval's own (evaluators.geneval.rules), the pattern verdict that of the detail metric.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluators.geneval.rules import judge, select_instances
from evaluators.geneval.types import Detection, PatternDetector
from evaluators.scenes.detector import ScenesDetector
from evaluators.statistics.intervals import wilson_interval
from mulosd.scenes import vocabulary as voc
from mulosd.types import Image


def accuracy(
    images_and_metadata: Iterable[tuple[Image, Mapping[str, Any]]], detector: PatternDetector | None = None
) -> dict[str, Any]:
    """Shares of correct images with 95 % Wilson limits.

    images_and_metadata: uint8 RGB images [H, W, 3] with scene metadata ({"tag", "include", "exclude"?}, and "pattern"
    in clauses that name one). Returns {"tasks": {tag: cell}, "overall": unweighted mean of the tasks seen or None,
    "images": cell, "pattern": cell, "plain": cell} with cell = {"value", "low", "high", "n"}, value None at n = 0.
    "pattern" counts every clause that names a pattern: its object is found and read correctly (a missing object is
    wrong); "plain" counts clauses without one whose object was found: read as neither pattern.
    Raises KeyError for metadata without a tag.
    """
    reader = detector or ScenesDetector()
    hits: dict[str, list[bool]] = defaultdict(list)
    for image, metadata in images_and_metadata:
        found = reader.detect(image)
        kept = select_instances(found, metadata["tag"])
        verdict = judge(kept, metadata, lambda one, image=image: reader.color(image, one))  # type: ignore[misc]
        hits[f"task {metadata['tag']}"].append(verdict.correct)
        hits["images"].append(verdict.correct)
        for clause in metadata["include"]:
            _read_clause(reader, image, clause, kept.get(clause["class"], ()), hits)
    tasks = {key.removeprefix("task "): _cell(values) for key, values in hits.items() if key.startswith("task ")}
    shares = [cell["value"] for cell in tasks.values() if cell["value"] is not None]
    overall = sum(shares) / len(shares) if shares else None
    return {"tasks": tasks, "overall": overall, **{key: _cell(hits[key]) for key in ("images", "pattern", "plain")}}


def _read_clause(
    reader: PatternDetector,
    image: Image,
    clause: Mapping[str, Any],
    found: Sequence[Detection],
    hits: dict[str, list[bool]],
) -> None:
    wanted = clause.get("pattern")
    read = reader.pattern(image, found[0]) if found else None
    if wanted:
        hits["pattern"].append(read == wanted)
    elif read is not None:
        hits["plain"].append(read not in voc.PATTERNS)


def _cell(values: Sequence[bool]) -> dict[str, float | None]:
    if not values:
        return {"value": None, "low": None, "high": None, "n": 0}
    low, high = wilson_interval(sum(values), len(values))
    return {"value": sum(values) / len(values), "low": low, "high": high, "n": len(values)}
