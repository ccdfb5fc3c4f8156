"""The DPG-Bench evaluator: rows with questions -> answers -> score per image, per prompt, per category.

dpg/overall = 100 x mean over prompts of the mean over their images of the mean over their questions after dependencies
(docs/metrics.md "DPG-Bench"): prompts weigh the same. Categories are means over questions, by default as upstream takes
them: raw answers of each prompt's last image, not comparable with the overall. A failed image has no answers and is
counted; a prompt without questions, or with one the answerer cannot judge, makes the metrics null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from evaluators.dpg.rules import CATEGORIES, Policy, Question, after_dependency, is_yes, mean_score, parse_questions
from evaluators.images import MissingImage, row_image, row_metadata
from evaluators.state import Record, SampleState, reasons_of, state_of
from evaluators.statistics.intervals import bootstrap_proportion, describe_bootstrap, prompt_of
from evaluators.types import Metric, Row
from mulosd.types import Estimate, Image

POINTS = 100.0


class Vqa(Protocol):
    """Answers questions about an image. The numbers of different answerers are different metrics."""

    def identity(self) -> dict[str, Any]:
        """Name, version and weight hashes: whatever changes its answers, JSON-serialisable."""
        ...

    def cannot_answer(self, question: str) -> str:
        """Why it cannot judge this question at all, "" where it can."""
        ...

    def answer(self, image: Image, question: str) -> str:
        """The answer as the answerer words it; image: uint8 RGB [H, W, 3]. Asked image by image."""
        ...


class DpgEvaluator:
    """Scores rows whose metadata has "questions" (evaluators.dpg.rules.parse_questions says of what form)."""

    name = "dpg"
    version = "1"
    state = SampleState

    def __init__(self, vqa: Vqa, *, policy: Policy | None = None) -> None:
        self._vqa = vqa
        self._policy = policy or Policy()

    def protocol(self) -> dict[str, Any]:
        """Rules, answerer and policy."""
        return {"rules": "dpg ELLA 3c228f1", "vqa": self._vqa.identity(), "policy": self._policy.to_json()}

    def prepare(self) -> None:
        """Nothing to load: an answerer loads itself."""

    def score(self, rows: Sequence[Row]) -> SampleState:
        """A record per row: status "scored", "missing" or "unjudged", and its questions with their answers."""
        return state_of(self._record(row) for row in rows)

    def merge(self, a: SampleState, b: SampleState) -> SampleState:
        """Join two states by sample id."""
        return a.merge(b)

    def finalize(self, state: SampleState) -> list[Metric]:
        """dpg/overall, dpg/<category> for all five, and dpg/<category>/<detail> for those that were asked."""
        reasons = [record["unjudgeable"] for _, record in sorted(state.records.items()) if record["unjudgeable"]]
        null = ""
        if reasons:
            null = f"{len(reasons)} of {len(state.records)} images cannot be judged, for instance: {reasons[0]}"
        asked = _asked(state, every=self._policy.category_images == "all_images")
        details = sorted({answer["detail"] for answer in asked.values() if answer["detail"] != answer["category"]})
        return [
            self._overall(state, null),
            *(
                self._category(name, {k: a for k, a in asked.items() if a["category"] == name}, null)
                for name in CATEGORIES
            ),
            *(
                self._category(_metric_name(name), {k: a for k, a in asked.items() if a["detail"] == name}, null)
                for name in details
            ),
        ]

    def _record(self, row: Row) -> Record:
        entries = row_metadata(row).get("questions") or []
        questions = parse_questions(entries, row["sample_id"], missing_parents=self._policy.missing_parents)
        record: dict[str, Any] = {
            "sample_id": row["sample_id"],
            "unjudgeable": self._unjudgeable(questions),
            "answers": [_unanswered(question) for question in questions],
        }
        try:
            image = row_image(row)
        except MissingImage as missing:
            return {**record, "status": "missing", "reason": str(missing)}
        if record["unjudgeable"]:
            return {**record, "status": "unjudged", "reason": record["unjudgeable"]}
        answers = {question.id: self._vqa.answer(image, question.text) for question in questions}
        raw = {key: float(is_yes(answer, self._policy)) for key, answer in answers.items()}
        values = after_dependency(raw, questions, self._policy)
        answered = [
            {**_unanswered(q), "answer": answers[q.id], "raw": raw[q.id], "after_dependency": values[q.id]}
            for q in questions
        ]
        return {**record, "status": "scored", "reason": "", "score": mean_score(values), "answers": answered}

    def _unjudgeable(self, questions: Sequence[Question]) -> str:
        if not questions:
            return "the prompt carries no questions"
        return next((reason for q in questions if (reason := self._vqa.cannot_answer(q.text))), "")

    def _overall(self, state: SampleState, null: str) -> Metric:
        scores = {key: float(record["score"]) for key, record in state.select("scored").items()}
        by_prompt: dict[str, list[float]] = {}
        for key, score in scores.items():
            by_prompt.setdefault(prompt_of(key), []).append(score)
        means = {f"{prompt}/mean": sum(values) / len(values) for prompt, values in by_prompt.items()}
        reason = null or ("" if means else "no scored image")
        estimate = Estimate(None, reason=reason) if reason else bootstrap_proportion(means)
        num_missing = len(state.select("missing"))
        per_sample = {key: POINTS * score for key, score in scores.items()}
        protocol = {"n_prompts": len(means)}
        metric = self._metric("overall", estimate, len(scores), num_missing, per_sample, protocol)
        return replace(metric, missing=reasons_of(state.records))

    def _category(self, name: str, answers: Mapping[str, Mapping[str, Any]], null: str) -> Metric:
        values = {key: a[self._policy.category_values] for key, a in answers.items() if a["answer"] is not None}
        reason = null or ("" if values else f"no answered question of {name}")
        estimate = Estimate(None, reason=reason) if reason else bootstrap_proportion(values)
        per_answer = {key: POINTS * value for key, value in values.items()}
        metric = self._metric(name, estimate, len(values), len(answers) - len(values), per_answer, {})
        missing = {key: answer["reason"] or "no answer" for key, answer in answers.items() if answer["answer"] is None}
        return replace(metric, missing=missing)

    def _metric(
        self,
        name: str,
        estimate: Estimate,
        n: int,
        num_missing: int,
        scores: dict[str, float],
        protocol: dict[str, Any],
    ) -> Metric:
        value, limits = estimate.value, estimate.interval
        return Metric(
            name=f"dpg/{name}",
            value=None if value is None else POINTS * value,
            direction="higher",
            unit="points of 100",
            n=n,
            n_missing=num_missing,
            version=self.version,
            interval=(POINTS * limits.low, POINTS * limits.high) if limits else None,
            protocol={**self.protocol(), **protocol, "interval": describe_bootstrap(proportion=True)},
            reason=estimate.reason,
            per_sample=scores,
        )


def _asked(state: SampleState, *, every: bool) -> dict[str, Mapping[str, Any]]:
    """`<sample_id>#<question id>` -> answer, of all images or of each prompt's last one (missing or not)."""
    last: dict[str, str] = {}
    for key in state.records:
        prompt = prompt_of(key)
        if prompt not in last or _image_index(key) > _image_index(last[prompt]):
            last[prompt] = key
    chosen = sorted(state.records) if every else sorted(last.values())
    return {
        f"{key}#{answer['id']}": {**answer, "reason": state.records[key].get("reason", "")}
        for key in chosen
        for answer in state.records[key]["answers"]
    }


def _image_index(sample_id: str) -> int:
    return int(sample_id.rpartition("/")[2])


def _metric_name(detail: str) -> str:
    """ "attribute - color" -> "attribute/color"."""
    return "/".join(part.strip() for part in detail.split(" - ", 1))


def _unanswered(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "question": question.text,
        "parents": list(question.parents),
        "category": question.category,
        "detail": question.detail,
        "answer": None,
        "raw": None,
        "after_dependency": None,
    }
