"""The detail metric: over prompts that name a pattern, is the named object there and is its pattern read correctly?

Patterns are lost on the lowest grid, so a blurred draft can score well on objects but not here. An image is right when
every include clause with a "pattern" is met by `count` instances: of the class, of the clause's colour where one is
given, most confident first, each read with that pattern. A missing object is wrong; a missing image is missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluators.geneval.rules import Thresholds, select_instances
from evaluators.geneval.types import Detection, PatternDetector
from evaluators.images import MissingImage, row_image, row_metadata
from evaluators.state import Record, SampleState, reasons_of, state_of
from evaluators.statistics.intervals import bootstrap_proportion, describe_bootstrap
from evaluators.types import Metric, Row
from mulosd.types import Estimate, Image


class Reading(NamedTuple):
    """found: all named objects are there; correct: and all their patterns are right."""

    found: bool
    correct: bool
    reason: str


class DetailEvaluator:
    """Scores the rows whose metadata has an include clause with a "pattern"; other rows are not part of the metric."""

    name = "detail"
    version = "1"
    state = SampleState

    def __init__(self, detector: PatternDetector, *, thresholds: Thresholds | None = None) -> None:
        self._detector = detector
        self._thresholds = thresholds or Thresholds()

    def protocol(self) -> dict[str, Any]:
        """Detector and confidence threshold."""
        return {"detector": self._detector.identity(), "thresholds": self._thresholds.to_json()}

    def prepare(self) -> None:
        """Nothing to load: a detector loads itself."""

    def score(self, rows: Sequence[Row]) -> SampleState:
        """A record per row with a pattern: status "scored", "missing" or "unjudged"."""
        with_clauses = [(row, _pattern_clauses(row_metadata(row))) for row in rows]
        return state_of(self._record(row, clauses) for row, clauses in with_clauses if clauses)

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        """detail/accuracy, and detail/object_found: how often the object is there, whatever its pattern."""
        unjudged = [record["unjudgeable"] for _, record in sorted(state.records.items()) if record["unjudgeable"]]
        null = "" if state.records else "no prompt names a pattern"
        if unjudged:
            null = f"{len(unjudged)} of {len(state.records)} images cannot be judged, for instance: {unjudged[0]}"
        return [self._metric("accuracy", "correct", state, null), self._metric("object_found", "found", state, null)]

    def _record(self, row: Row, clauses: Sequence[Mapping[str, Any]]) -> Record:
        record = {"sample_id": row["sample_id"], "unjudgeable": self._unjudgeable(clauses)}
        try:
            image = row_image(row)
        except MissingImage as missing:
            return {**record, "status": "missing", "reason": str(missing)}
        if record["unjudgeable"]:
            return {**record, "status": "unjudged", "reason": record["unjudgeable"]}
        objects = select_instances(self._detector.detect(image), "", self._thresholds)
        readings = [read_clause(self._detector, image, objects, clause) for clause in clauses]
        return {
            **record,
            "status": "scored",
            "found": all(reading.found for reading in readings),
            "correct": all(reading.correct for reading in readings),
            "reason": "\n".join(reading.reason for reading in readings if reading.reason),
        }

    def _unjudgeable(self, clauses: Sequence[Mapping[str, Any]]) -> str:
        unknown = []
        words = {"class": self._detector.classes}
        words |= {key: getattr(self._detector, f"{key}s") for key in ("color", "pattern") if self._has(key)}
        for key, known in words.items():
            unknown += [clause[key] for clause in clauses if key in clause and clause[key] not in known]
        return f"the detector has no word for {', '.join(dict.fromkeys(unknown))}" if unknown else ""

    def _has(self, key: str) -> bool:
        return getattr(self._detector, f"{key}s", None) is not None

    def _metric(self, name: str, field: str, state: SampleState, null: str) -> Metric:
        scores = {key: float(record[field]) for key, record in state.select("scored").items()}
        reason = null or ("" if scores else "no scored image")
        estimate = Estimate(None, reason=reason) if reason else bootstrap_proportion(scores)
        return Metric(
            name=f"detail/{name}",
            value=estimate.value,
            direction="higher",
            unit="share of images",
            n=len(scores),
            n_missing=len(state.select("missing")),
            version=self.version,
            interval=estimate.interval,
            protocol={**self.protocol(), "interval": describe_bootstrap(proportion=True)},
            reason=estimate.reason,
            per_sample=scores,
            missing=reasons_of(state.records),
        )


def read_clause(
    detector: PatternDetector, image: Image, objects: Mapping[str, Sequence[Detection]], clause: Mapping[str, Any]
) -> Reading:
    """Judge one clause {"class", "count", "color"?, "pattern"} on kept instances (most confident first)."""
    named = list(objects.get(clause["class"], ()))
    if "color" in clause:
        named = [one for one in named if detector.color(image, one) == clause["color"]]
    what = " ".join([*([clause["color"]] if "color" in clause else []), clause["class"]])
    if len(named) < clause["count"]:
        return Reading(False, False, f"expected {what}>={clause['count']}, found {len(named)}")
    read = [detector.pattern(image, one) for one in named[: clause["count"]]]
    if all(word == clause["pattern"] for word in read):
        return Reading(True, True, "")
    return Reading(True, False, f"expected {clause['pattern']} {what}, read {', '.join(read)}")


def _pattern_clauses(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [clause for clause in metadata.get("include", ()) if "pattern" in clause]
