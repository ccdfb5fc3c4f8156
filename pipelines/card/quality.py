"""Numbers of a family's card: summaries of scored cells with intervals, the choice of guidance, the gate's verdicts.

Pure functions over metrics as the evaluators give them (their JSON form). Intervals are 95 % and *clustered by
caption*: few captions exist for some tasks (12 for one object and for counting), so images of one caption are no
independent evidence about others. Samples are renamed `<caption>/<sample>`, since `evaluators.statistics` resamples
what stands before the last slash; the overall score resamples captions inside their task, and where all images agree
Wilson's limits use the number of captions as n. A task with one caption has no interval, with the reason beside it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evaluators.statistics import intervals as statistics
from mulosd.errors import DataError
from mulosd.types import GENEVAL_TASKS, Estimate, Values

Metrics = Mapping[str, Mapping[str, Any]]
Summary = dict[str, Any]

DIGITS = 6
DETAIL = ("detail/accuracy", "detail/object_found")

# The gate of docs/tiny.md. "value" rules compare point values; intervals stand beside them.
MIN_TEST_PROMPTS = 900
MIN_VQ_OVERALL = 0.95
MIN_VQ_DETAIL = 0.90
MIN_AR_OVERALL = 0.50
MIN_DETAIL_ADVANTAGE = 0.10
MIN_STANDARD_ERRORS = 2.0


def summarise(metrics: Metrics, captions: Mapping[str, str] | None = None) -> Summary:
    """GenEval overall, image mean and tasks, detail accuracy and object_found as {"value", "interval", "n", ...}.

    metrics: metric name -> JSON form of a Metric. captions: sample_id -> caption, the clusters of the intervals; None
    keeps one cluster per sample (reconstructions, which no caption takes part in). Tasks without an image are left out.
    """
    tasks = {task: metrics[f"geneval/{task}"] for task in GENEVAL_TASKS if metrics[f"geneval/{task}"]["n"]}
    every = {key: value for task in tasks.values() for key, value in task["per_sample"].items()}
    tags = {key: name for name, task in tasks.items() for key in task["per_sample"]}
    return {
        "geneval/overall": _entry(metrics["geneval/overall"], every, captions, tags=tags),
        "geneval/image_mean": _entry(metrics["geneval/image_mean"], every, captions, tags=tags, pooled=True),
        **{f"geneval/{task}": _entry(metric, metric["per_sample"], captions) for task, metric in tasks.items()},
        **{name: _entry(metrics[name], metrics[name]["per_sample"], captions) for name in DETAIL},
    }


def choose(scanned: Mapping[float, Summary]) -> float:
    """The guidance with the highest overall score; among equals the lowest. DataError when nothing is scored."""
    scored = {guidance: s["geneval/overall"]["value"] for guidance, s in scanned.items()}
    if None in scored.values() or not scored:
        raise DataError("a scanned guidance has no overall score: scan at least one prompt of each task.")
    best = max(scored.values())
    return min(guidance for guidance, value in scored.items() if value == best)


def advantage(ar: Values, draft: Values, captions: Mapping[str, str]) -> dict[str, Any]:
    """Paired difference ar - draft of per-sample values with its interval and standard error, clustered by caption."""
    try:
        estimate = statistics.paired_difference(by_caption(ar, captions), by_caption(draft, captions))
    except DataError as error:
        return {"value": None, "interval": None, "standard_error": None, "n": 0, "reason": str(error)}
    shared = {key: ar[key] - draft[key] for key in ar.keys() & draft.keys()}
    error_of = statistics.standard_error(by_caption(shared, captions))
    return {**_rounded(estimate), "standard_error": None if error_of is None else round(error_of, DIGITS)}


def by_caption(values: Values, captions: Mapping[str, str]) -> dict[str, float]:
    """Values under names whose part before the last slash is the caption."""
    return {f"{captions[key]}/{key.replace('/', '|')}": value for key, value in values.items()}


def gate(
    *, n: int, vq: Mapping[str, Summary], ar: Mapping[str, Summary], detail: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The verdicts, each with its rule and the numbers it rests on; `passed` at the top is all of them.

    n: test prompts. vq, ar: target -> summary. detail: target -> up-sampler -> {"accuracy", "advantage"} of draft-only;
    the verdict is taken against the up-sampler with the highest accuracy. A number that could not be had fails.
    """
    verdicts = {
        "sample_size": {"rule": f"n >= {MIN_TEST_PROMPTS} test prompts", "n": n, "passed": n >= MIN_TEST_PROMPTS},
        "vq_reconstruction": _at_least(vq, "geneval/overall", MIN_VQ_OVERALL),
        "vq_detail": _at_least(vq, "detail/accuracy", MIN_VQ_DETAIL),
        "ar_overall": _at_least(ar, "geneval/overall", MIN_AR_OVERALL),
        "discriminability": _discriminability(ar, detail),
    }
    return {"passed": all(verdict["passed"] for verdict in verdicts.values()), **verdicts}


def _at_least(summaries: Mapping[str, Summary], metric: str, low: float) -> dict[str, Any]:
    targets = {}
    for target, summary in summaries.items():
        value = summary[metric]["value"]
        targets[target] = {**summary[metric], "passed": value is not None and value >= low}
    passed = bool(targets) and all(entry["passed"] for entry in targets.values())
    return {"rule": f"{metric} >= {low:.2f}", "targets": targets, "passed": passed}


def _discriminability(ar: Mapping[str, Summary], detail: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    targets = {}
    for target, drafts in detail.items():
        known = {name: d["accuracy"] for name, d in drafts.items() if d["accuracy"] is not None}
        best = max(known, key=lambda name: known[name]) if known else next(iter(drafts))
        found = drafts[best]["advantage"]
        value, error = found["value"], found["standard_error"]
        passed = (
            None not in (value, error) and value >= MIN_DETAIL_ADVANTAGE and value >= MIN_STANDARD_ERRORS * float(error)
        )
        targets[target] = {
            **found,
            "ar": ar[target]["detail/accuracy"]["value"],
            "draft_only": drafts[best]["accuracy"],
            "upsampler": best,
            "passed": passed,
        }
    rule = (
        f"detail of ar - detail of the best draft-only >= {MIN_DETAIL_ADVANTAGE:.2f} "
        f"and >= {MIN_STANDARD_ERRORS:g} standard errors"
    )
    return {
        "rule": rule,
        "targets": targets,
        "passed": bool(targets) and all(entry["passed"] for entry in targets.values()),
    }


def _entry(
    metric: Mapping[str, Any],
    values: Values,
    captions: Mapping[str, str] | None,
    *,
    tags: Mapping[str, str] | None = None,
    pooled: bool = False,
) -> dict[str, Any]:
    """A metric's value with the interval over captions; the value itself is the evaluator's."""
    entry: dict[str, Any] = {"value": metric["value"], "interval": None, "n": metric["n"]}
    if metric["n_missing"]:
        entry["n_missing"] = metric["n_missing"]
    if metric["value"] is None:
        return {**entry, "reason": metric["reason"]}
    renamed = dict(values) if captions is None else by_caption(values, captions)
    strata = None
    if tags is not None:
        strata = dict(zip(renamed, (tags[key] for key in values), strict=True))
    estimate = statistics.bootstrap_proportion(renamed, strata=strata, pooled=pooled)
    if not math.isclose(estimate.value, metric["value"], abs_tol=1e-9):
        raise RuntimeError(f"{metric['name']}: {metric['value']} by the evaluator, {estimate.value} from its samples")
    return {**entry, **_rounded(estimate)}


def _rounded(estimate: Estimate) -> dict[str, Any]:
    limits = None if estimate.interval is None else [round(limit, DIGITS) for limit in estimate.interval]
    entry = {"value": round(estimate.value, DIGITS), "interval": limits, "n": estimate.n}
    entry["clusters"] = estimate.n_clusters
    if estimate.n_unpaired:
        entry["n_unpaired"] = estimate.n_unpaired
    return entry if not estimate.reason else {**entry, "reason": estimate.reason}


def distinct(captions: Sequence[str], scanned: Sequence[str]) -> dict[str, int]:
    """How many different captions a prompt list has, and how many of them the scan's list has too."""
    return {"captions": len(set(captions)), "captions_in_scan": len(set(captions) & set(scanned))}
