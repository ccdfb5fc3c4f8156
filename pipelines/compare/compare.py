"""Each cell of a sweep against the others: ratios, paired differences and marks, handed to the table as plain values.

Cells are compared within a group: same target, same prompts. The baseline of a cell is the group's `ar` cell with the
same sampler knobs; without one the comparison stays empty with a reason. All intervals are 95 %, paired by sample and
resampled by prompt (`evaluators.statistics`). Definitions: `latency_speedup` comes from one bench run or not at all;
`forward_ratio` is total forwards of `ar` over those of the cell, all kinds and both models.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.rows import CellRow
from dashboards.table import COLUMNS, Column, Comparison, prompts_of
from evaluators.geneval import paired_overall_difference
from evaluators.statistics import intervals as statistics
from evaluators.statistics.paired_tests import limits_where_all_agree
from mulosd.errors import DataError
from mulosd.methods import DRAFT_KNOBS, SAMPLER_KNOBS
from mulosd.types import FORWARD_COUNTERS, GENEVAL_TASKS, Estimate, Interval, Values

OVERALL = "geneval/overall"
DETAIL = "detail/accuracy"
DPG = "dpg/overall"
# What can be marked best: means over samples that rows share. Recall is a mean over references judged by each row's own
# manifold, and distances between distributions are not means.
MARKED = ("forwards", "geneval", "dpg", "detail", "precision_effnet")
NON_INFERIORITY_MARGIN = 0.05  # GenEval overall: the largest loss against ar that still counts as none


@dataclass
class _Group:
    """Rows of one target and prompt set, with the paired differences that were worked out already."""

    rows: list[CellRow] = field(default_factory=list)
    gaps: dict[tuple[str, str, str], Estimate] = field(default_factory=dict)

    def gap(self, row: CellRow, other: CellRow, metric: str) -> Estimate:
        """row - other, paired by sample; each bootstrap is drawn once."""
        key = (row.cell_key, other.cell_key, metric)
        if key not in self.gaps:
            self.gaps[key] = _difference(row, other, metric)
        return self.gaps[key]


def compare(rows: Sequence[CellRow]) -> dict[str, Comparison]:
    """cell_key -> comparison with the other rows of its group."""
    groups: dict[tuple[str, str], _Group] = {}
    for row in rows:
        groups.setdefault((row.target, prompts_of(row)), _Group()).rows.append(row)
    compared = {}
    for group in groups.values():
        best = _best(group)
        for row in group.rows:
            marks = frozenset(key for key, winner in best.items() if winner is row)
            compared[row.cell_key] = _compare_row(row, group, marks)
    return compared


def forwards_of(row: CellRow) -> dict[str, float]:
    """sample_id -> forwards of all kinds and both models."""
    kinds = [row.counters[name] for name in FORWARD_COUNTERS if name in row.counters]
    return {sample: sum(kind[sample] for kind in kinds) for sample in kinds[0]} if kinds else {}


def baseline_of(row: CellRow, group: Sequence[CellRow], method: str = "ar") -> CellRow | None:
    """The group's `method` row with the sampler knobs of `row`; None when there is none or more than one.

    Of several draft-only rows a row with a draft is held to the one that leaves the very same draft untouched.
    """
    found = [
        other
        for other in group
        if other.method == method and _knobs(other, SAMPLER_KNOBS) == _knobs(row, SAMPLER_KNOBS)
    ]
    if len(found) > 1:
        found = [other for other in found if _knobs(other, DRAFT_KNOBS) == _knobs(row, DRAFT_KNOBS)]
    return found[0] if len(found) == 1 else None


def _compare_row(row: CellRow, group: _Group, marks: frozenset[str]) -> Comparison:
    baseline, draft = baseline_of(row, group.rows), baseline_of(row, group.rows, "draft-only")
    estimates = {
        "forwards": _mean(forwards_of(row)),
        "resampled": _resampled(row),
        "chosen_tau": _chosen_tau(row),
        "latency_speedup": _latency(row),
    }
    if baseline is None:
        reason = "no ar row with the same sampler settings in this sweep"
        for key in ("forward_ratio", "geneval_difference", "dpg_difference", "detail_kept"):
            estimates[key] = Estimate(None, reason=reason)
    else:
        estimates["forward_ratio"] = _guarded(statistics.ratio_of_totals, forwards_of(baseline), forwards_of(row))
        estimates["geneval_difference"] = group.gap(row, baseline, OVERALL)
        estimates["dpg_difference"] = group.gap(row, baseline, DPG)
        estimates["detail_kept"] = _detail_kept(row, baseline, draft, group)
    notes = () if baseline is None or row.method in ("ar", "draft-only") else _notes(row, baseline, draft, group)
    return Comparison(estimates, best=marks, verdicts=_verdicts(row, baseline, draft, group), notes=notes)


def _guarded(function: Callable[..., Estimate], *args: Mapping[str, Any], **options: object) -> Estimate:
    """The statistic as a table estimate; values that cannot be compared become a reason."""
    if not all(args):
        return Estimate(None, reason="no per-sample values")
    try:
        return function(*args, **options)
    except DataError as error:
        return Estimate(None, reason=str(error))


def _per_sample(row: CellRow, metric: str) -> Values:
    values: Values = row.metrics.get(metric, {}).get("per_sample", {})
    return values


def _by_task(row: CellRow) -> dict[str, Values]:
    found = {task: _per_sample(row, f"geneval/{task}") for task in GENEVAL_TASKS}
    return {task: values for task, values in found.items() if values}


def _difference(row: CellRow, baseline: CellRow, metric: str) -> Estimate:
    if row is baseline:
        return Estimate(None, reason="the row is its own baseline")
    ours, theirs = _per_sample(row, metric), _per_sample(baseline, metric)

    def difference(*_: Values) -> Estimate:
        if metric == OVERALL:  # a mean of task means: prompts are resampled inside their task
            found = paired_overall_difference(_by_task(row), _by_task(baseline))
        else:
            found = statistics.paired_difference(ours, theirs)
        return limits_where_all_agree(found, ours, theirs, whole=statistics.share_whole(row.metrics[metric]))

    return _guarded(difference, ours, theirs)


def _detail_kept(row: CellRow, baseline: CellRow, draft: CellRow | None, group: _Group) -> Estimate:
    """(cell - draft-only) / (ar - draft-only) on the detail metric, over the samples all three have."""
    if draft is None:
        return Estimate(None, reason="no draft-only row with the same sampler settings in this sweep")
    advantage = group.gap(baseline, draft, DETAIL)
    if advantage.value is None:
        return advantage
    if advantage.interval is None or advantage.interval[0] <= 0:
        return Estimate(None, reason="ar's advantage over draft-only is not distinguishable from zero here")
    series = [_per_sample(cell, DETAIL) for cell in (row, baseline, draft)]
    shared = sorted(set(series[0]).intersection(*series[1:]))
    if not shared:
        return Estimate(None, reason="no sample has a detail score in all three rows")
    ours, full, none = (sum(values[sample] for sample in shared) for values in series)
    return Estimate((ours - none) / (full - none), None, len(shared))


def _resampled(row: CellRow) -> Estimate:
    """Mean share of the target tokens that were resampled."""
    counts = row.counters.get("resampled", {})
    if counts and not any(row.counters.get("drafted", {}).values()):
        return Estimate(None, reason=f"{row.method} has no draft")
    return _mean({sample: n / row.n_target_tokens for sample, n in counts.items()})


def _chosen_tau(row: CellRow) -> Estimate:
    """Mean of the taus that met a requested fraction: what a fixed tau would be set to."""
    metric = row.metrics.get("speed/chosen_tau")
    if metric is None:
        return Estimate(None, reason="only a requested resampled_fraction chooses one")
    interval = metric.get("interval")
    return Estimate(metric["value"], Interval(*interval) if interval else None, metric["n"])


def _mean(values: Values) -> Estimate:
    """The mean without an interval: a description of the cell, not a comparison."""
    if not values:
        return Estimate(None, reason="no per-sample values")
    # fsum: the same mean whatever the order in which the samples were read.
    return Estimate(math.fsum(values.values()) / len(values), None, len(values))


def _latency(row: CellRow) -> Estimate:
    if row.latency.get("speed_up") is None:
        return Estimate(None, reason=row.latency.get("reason") or "no bench run of this cell (mulosd bench)")
    interval = row.latency.get("interval")
    return Estimate(row.latency["speed_up"], Interval(*interval) if interval else None, row.latency.get("n", 0))


def _best(group: _Group) -> dict[str, CellRow]:
    """Column key -> the row that is better than each other one, every paired interval excluding zero.

    draft-only does not decode with the target, so it is left out where cost is compared.
    """
    best = {}
    for column in COLUMNS:
        if column.key not in MARKED:
            continue
        rows = [row for row in group.rows if not (column.key == "forwards" and row.method == "draft-only")]
        valued = [(value, row) for row in rows if (value := _value(row, column)) is not None]
        if len(rows) < 2 or len(valued) < len(rows):
            continue
        top = (max if column.direction == "higher" else min)(valued, key=lambda pair: pair[0])[1]
        if all(_beats(top, other, column, group) for other in rows if other is not top):
            best[column.key] = top
    return best


def _value(row: CellRow, column: Column) -> float | None:
    if column.key == "forwards":
        values = forwards_of(row)
        return math.fsum(values.values()) / len(values) if values else None
    return row.metrics.get(column.metric, {}).get("value")


def _beats(row: CellRow, other: CellRow, column: Column, group: _Group) -> bool:
    if column.key == "forwards":
        gap = _guarded(statistics.paired_difference, forwards_of(other), forwards_of(row))
    else:
        gap = group.gap(row, other, column.metric)
        if gap.interval and gap.interval[0] == gap.interval[1]:
            return False  # equal differences on every prompt leave a bootstrap without a width: no evidence
    return gap.interval is not None and gap.interval[0] > 0


def _notes(row: CellRow, baseline: CellRow, draft: CellRow | None, group: _Group) -> tuple[str, ...]:
    flag = row.latency.get("flag")
    verdict = _verdict(row, baseline, draft, group) if draft else ""
    return tuple(note for note in (verdict, f"Latency of {row.label}: {flag}." if flag else "") if note)


def _verdicts(row: CellRow, baseline: CellRow | None, draft: CellRow | None, group: _Group) -> dict[str, str]:
    """Better than draft-only, and non-inferior to ar: yes, no or not shown, with what it was judged by."""
    found = {}
    if draft is not None and row is not draft:
        metric = _draft_metric(row, draft)
        word = _shown(group.gap(row, draft, metric), 0.0)
        found["beats_draft"] = word and f"{word} ({'detail' if metric == DETAIL else 'GenEval'})"
    if baseline is not None and row is not baseline:
        word = _shown(group.gap(row, baseline, OVERALL), -NON_INFERIORITY_MARGIN)
        found["keeps_ar"] = word and f"{word} (margin {NON_INFERIORITY_MARGIN:g})"
    return {key: text for key, text in found.items() if text}


def _shown(gap: Estimate, limit: float) -> str:
    """yes: the whole interval is above the limit; no: all of it below; "" without an interval."""
    if gap.interval is None:
        return ""
    low, high = gap.interval
    return "yes" if low > limit else "no" if high < limit else "not shown"


def _draft_metric(row: CellRow, draft: CellRow) -> str:
    """What distinguishes a row from draft-only: detail, which a draft lacks, or GenEval where it was not scored."""
    return DETAIL if _per_sample(row, DETAIL) and _per_sample(draft, DETAIL) else OVERALL


def _verdict(row: CellRow, baseline: CellRow, draft: CellRow, group: _Group) -> str:
    """Whether the speed-up counts: quality above draft-only and non-inferior to ar; and what is kept of the detail."""
    against_ar = group.gap(row, baseline, OVERALL)
    if against_ar.interval is None:
        return ""
    metric = _draft_metric(row, draft)
    problems = []
    if _shown(against_ar, -NON_INFERIORITY_MARGIN) != "yes":
        problems.append(f"the lower limit of GenEval − ar is not above −{NON_INFERIORITY_MARGIN}")
    if _shown(group.gap(row, draft, metric), 0.0) != "yes":
        problems.append(f"{'detail' if metric == DETAIL else 'GenEval'} is not shown to be above draft-only")
    verdict = f"not shown to count ({'; '.join(problems)})" if problems else "counts"
    return f"Speed-up of {row.label}: {verdict}{_half_kept(row, baseline, draft) if metric == DETAIL else ''}."


def _half_kept(row: CellRow, baseline: CellRow, draft: CellRow) -> str:
    """Whether at least half of ar's detail advantage over draft-only is kept: cell - (ar + draft-only) / 2 above 0."""
    series = [_per_sample(cell, DETAIL) for cell in (row, baseline, draft)]
    try:
        found = statistics.paired_contrast(series, [1.0, -0.5, -0.5])
    except DataError:
        return ""
    if found.interval is None:
        return ""
    return f"; half of ar's detail advantage is {'' if found.interval.low > 0 else 'not shown to be '}kept"


def _knobs(row: CellRow, names: Sequence[str]) -> dict[str, object]:
    return {key: row.knobs[key] for key in names if key in row.knobs}
