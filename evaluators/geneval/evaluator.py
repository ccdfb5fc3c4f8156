"""The GenEval evaluator: rows -> verdict per image -> task accuracies, overall and the two other aggregates.

overall = unweighted mean of the six task accuracies over images (docs/metrics.md "GenEval"); image_mean and prompt_any
are other numbers with names of their own. A failed or unreadable image has no verdict and is counted in n_missing. A
prompt without a tag, or one that asks for a class or colour the detector has no word for, makes its metrics null with a
reason: it could only score 0.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from evaluators.geneval.rules import Thresholds, judge, select_instances
from evaluators.geneval.types import ColorClassifier, Detection, Detector
from evaluators.images import MissingImage, row_image, row_metadata
from evaluators.state import Record, SampleState, reasons_of, state_of
from evaluators.statistics.intervals import bootstrap_proportion, describe_bootstrap, paired_difference, prompt_of
from evaluators.types import Metric, Row
from mulosd.errors import DataError
from mulosd.types import GENEVAL_TASKS, Estimate, Values


class GenEvalEvaluator:
    """Values rows whose `metadata` carries GenEval's tag, include and exclude.

    color_classifier(image, detection) names the colour of one instance; `colors` are the words it can answer with
    (None: any) and `color_identity` says what it is where it is not part of the detector.
    """

    name = "geneval"
    version = "1"
    state = SampleState

    def __init__(
        self,
        detector: Detector,
        color_classifier: ColorClassifier,
        *,
        thresholds: Thresholds | None = None,
        colors: Sequence[str] | None = None,
        color_identity: Mapping[str, Any] | None = None,
    ) -> None:
        self._detector = detector
        self._color_classifier = color_classifier
        self._thresholds = thresholds or Thresholds()
        self._colors = None if colors is None else tuple(colors)
        self._color_identity = "of the detector" if color_identity is None else dict(color_identity)

    def protocol(self) -> dict[str, Any]:
        """Detector, colour reader and thresholds."""
        return {
            "rules": "geneval af4902f",
            "detector": self._detector.identity(),
            "color": self._color_identity,
            "thresholds": self._thresholds.to_json(),
        }

    def prepare(self) -> None:
        """Nothing to load: a detector loads itself."""

    def score(self, rows: Sequence[Row]) -> SampleState:
        """A record per row: status "scored", "missing" or "unjudged", and upstream's per-image fields."""
        return state_of(self._record(row) for row in rows)

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        """geneval/overall, one accuracy per task, geneval/image_mean, geneval/prompt_any."""
        every = state.records
        tasks = {task: {k: r for k, r in every.items() if r["tag"] == task} for task in GENEVAL_TASKS}
        absent = [task for task in GENEVAL_TASKS if not _scores(tasks[task])]
        incomplete = f"no scored image of {', '.join(absent)}; overall is the mean of all six tasks" if absent else ""
        null = _unjudged(every)
        return [
            self._metric("overall", every, null or incomplete, mean_of_tasks=True),
            *(self._metric(t, tasks[t], _unjudged(tasks[t]) if tasks[t] else null) for t in GENEVAL_TASKS),
            self._metric("image_mean", every, null),
            self._metric("prompt_any", every, null, any_of=True),
        ]

    def _record(self, row: Row) -> dict[str, Any]:
        metadata = row_metadata(row)
        sample_id = row["sample_id"]
        tag = str(metadata.get("tag", ""))
        record: dict[str, Any] = {
            "sample_id": sample_id,
            "prompt_id": row["prompt_id"],
            "filename": f"{row['prompt_id']}/samples/{int(sample_id.rpartition('/')[2]):05d}.png",
            "tag": tag,
            "prompt": row["prompt"],
            "metadata": json.dumps({**metadata, "prompt": row["prompt"]}),
            "unjudgeable": self._unjudgeable(metadata),
        }
        try:
            image = row_image(row)
        except MissingImage as missing:
            return {**record, "status": "missing", "correct": None, "reason": str(missing), "details": "{}"}
        if record["unjudgeable"]:
            reason = record["unjudgeable"]
            return {**record, "status": "unjudged", "correct": None, "reason": reason, "details": "{}"}
        objects = select_instances(self._detector.detect(image), tag, self._thresholds)
        verdict = judge(
            objects,
            metadata,
            lambda found: self._color_classifier(image, found),
            position_threshold=self._thresholds.position,
        )
        details = {name: [_box_row(one) for one in found] for name, found in objects.items()}
        return {**record, "status": "scored", **verdict._asdict(), "details": json.dumps(details)}

    def _unjudgeable(self, metadata: Mapping[str, Any]) -> str:
        if metadata.get("tag") not in GENEVAL_TASKS:
            return "the prompt carries no GenEval tag"
        clauses = [*metadata.get("include", ()), *metadata.get("exclude", ())]
        unknown = [c["class"] for c in clauses if c["class"] not in self._detector.classes]
        if self._colors is not None:
            unknown += [c["color"] for c in clauses if "color" in c and c["color"] not in self._colors]
        return f"the detector has no word for {', '.join(dict.fromkeys(unknown))}" if unknown else ""

    def _metric(
        self, name: str, records: Mapping[str, Record], null: str, *, mean_of_tasks: bool = False, any_of: bool = False
    ) -> Metric:
        scores = _scores(records)
        tags = {key: record["tag"] for key, record in records.items()}
        if any_of:
            scores, tags = _per_prompt(scores), {f"{prompt_of(key)}/any": tag for key, tag in tags.items()}
        reason = null or ("" if scores else "no scored image")
        if reason:
            estimate = Estimate(None, reason=reason)
        else:
            estimate = bootstrap_proportion(scores, strata=tags, pooled=not mean_of_tasks)
        return Metric(
            name=f"geneval/{name}",
            value=estimate.value,
            direction="higher",
            unit="share of prompts" if any_of else "share of images",
            n=len(scores),
            n_missing=sum(record["status"] == "missing" for record in records.values()),
            version=self.version,
            interval=estimate.interval,
            protocol={**self.protocol(), "interval": describe_bootstrap(strata="task", proportion=True)},
            reason=estimate.reason,
            per_sample={} if any_of else scores,
            missing={} if any_of else reasons_of(records),
        )


def paired_overall_difference(a: Mapping[str, Values], b: Mapping[str, Values]) -> Estimate:
    """overall(a) - overall(b) over the images both have, prompts resampled inside their task.

    a, b: task -> `per_sample` of the metric `geneval/<task>`. Raises DataError when a task has no shared image.
    """
    flat = [{key: value for task in GENEVAL_TASKS for key, value in side.get(task, {}).items()} for side in (a, b)]
    tags = {key: task for task in GENEVAL_TASKS for key in a.get(task, {}).keys() & b.get(task, {}).keys()}
    absent = sorted(set(GENEVAL_TASKS) - set(tags.values()))
    if absent:
        raise DataError(f"no image of {', '.join(absent)} is scored on both sides; overall needs all six tasks.")
    return paired_difference(flat[0], flat[1], strata=tags)


def _scores(records: Mapping[str, Record]) -> dict[str, float]:
    return {key: float(records[key]["correct"]) for key in sorted(records) if records[key]["status"] == "scored"}


def _per_prompt(scores: Values) -> dict[str, float]:
    """Best score of each prompt under a name like a sample's, so that each prompt is its own cluster."""
    best: dict[str, float] = {}
    for key, value in scores.items():
        name = f"{prompt_of(key)}/any"
        best[name] = max(value, best.get(name, 0.0))
    return best


def _unjudged(records: Mapping[str, Record]) -> str:
    reasons = [record["unjudgeable"] for key, record in sorted(records.items()) if record["unjudgeable"]]
    if not reasons:
        return ""
    return f"{len(reasons)} of {len(records)} images cannot be judged, for instance: {reasons[0]}"


def _box_row(found: Detection) -> list[float]:
    return [*(float(v) for v in found.box), float(found.score)]
