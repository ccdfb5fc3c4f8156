"""Two cells against each other: paired differences, wins, a test, what differs in their settings, what changed most.

All numbers are of side A minus side B over the samples that both have, prompts as units (`evaluators.statistics` and
`evaluators.statistics.paired_tests`): the same functions as in the tables of a sweep.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dashboards.numbers import NOT_A_KNOB
from dashboards.pair import Change, Pair, PairMetric, Setting
from dashboards.rows import CellRow, Picture
from evaluators.geneval import paired_overall_difference
from evaluators.statistics import intervals as statistics
from evaluators.statistics import paired_tests
from evaluators.statistics.paired_tests import PairedTest, Wins
from mulosd.errors import DataError, UserError, unknown_name
from mulosd.families.card import load_card
from mulosd.families.encoder_facts import conditions_are_greedy
from mulosd.methods import METHODS, all_knobs, configure
from mulosd.types import GENEVAL_TASKS, Direction, Estimate, Values
from pipelines.compare.compare import DETAIL, NON_INFERIORITY_MARGIN, OVERALL, forwards_of
from pipelines.compare.pair_inputs import Side
from pipelines.store.results import pictures

CHANGES = 6
FORWARDS = "speed/forwards_per_image"
# Sorted by the first of these that both sides have; the next one decides between equal changes.
CHANGE_METRICS = (OVERALL, DETAIL)
# Copies of what other metrics say.
SKIPPED = ("geneval/image_mean", "geneval/prompt_any", "speed/step_ratio")

Metrics = Mapping[str, Mapping[str, Any]]


def compare_pair(a: Side, b: Side, *, metric: str | None = None, changes: int = CHANGES) -> Pair:
    """The comparison of two cells.

    metric: what the largest changes are sorted by (default: GenEval, else detail). ConfigError for an unknown one,
    DataError when both sides are the same cell, or greedy ones with and without noise in their draws.
    """
    if a.row.cell_key == b.row.cell_key and a.store.root == b.store.root and a.sweep_key == b.sweep_key:
        raise DataError(f"both sides are the cell {a.row.cell_key} ({a.label}); name two different ones.")
    _check_greedy(a, b)
    ours, theirs = _metrics(a.row), _metrics(b.row)
    names = [name for name in ours if name in theirs and name not in SKIPPED]
    chosen = _change_metric(metric, ours, theirs)
    return Pair(
        label_a=a.label,
        label_b=b.label,
        cell_a=a.row.cell_key,
        cell_b=b.row.cell_key,
        metrics=tuple(_pair_metric(name, ours, theirs, b.row.method) for name in names),
        settings=tuple(_differences(settings_of(a), settings_of(b))),
        environment=tuple(_differences(_environment(a.record), _environment(b.record))),
        change_metric=chosen,
        changes=tuple(_changes(a, b, ours, theirs, chosen, changes)) if chosen else (),
        notes=tuple(_notes(a, b)),
    )


def sheet_columns(a: Side, b: Side, pair: Pair) -> dict[str, list[Picture]]:
    """The images of the changed prompts for a contact sheet: one column per side, values in the captions."""
    order = [change.sample_id for change in pair.changes]
    captions = {c.sample_id: f"{c.prompt} — A {_short(c.a)}, B {_short(c.b)}" for c in pair.changes}
    columns = {}
    for letter, side in (("A", a), ("B", b)):
        found = {p.sample_id: p for p in pictures(side.store, side.row.cell_key, sample_ids=captions)}
        shown = [replace(found[key], prompt=captions[key]) for key in order if key in found]
        method, _, knobs = side.row.label.partition(" ")
        columns[f"{letter}:{method} {side.row.target} {knobs}".strip()] = shown
    return columns


def write_pair(a: Side, b: Side, pair: Pair, folder: Path) -> list[Path]:
    """Publish compare.md, compare.json and, where prompts changed, contact_sheet.png in `folder`; returns the paths."""
    from dashboards.gallery import save_contact_sheet
    from dashboards.pair import pair_json, pair_markdown
    from mulosd.files.publish import publish_bytes

    written = [folder / "compare.md", folder / "compare.json"]
    publish_bytes(written[0], pair_markdown(pair).encode("utf-8"))
    publish_bytes(written[1], pair_json(pair).encode("utf-8"))
    if pair.changes:
        title = f"Largest changes in {pair.change_metric}"
        written.append(save_contact_sheet(folder / "contact_sheet.png", sheet_columns(a, b, pair), title=title))
    return written


def settings_of(side: Side) -> dict[str, Any]:
    """What the images of a cell depend on, every knob with its value."""
    config = dict(side.config)
    knobs = all_knobs(config["method"], config.pop("knobs"))
    return {**config, **{f"knob {name}": value for name, value in knobs.items()}}


def _check_greedy(a: Side, b: Side) -> None:
    """Greedy images of earlier versions depended on the seed where logits were close; they do not pair with today's."""
    for old, new in ((a, b), (b, a)):
        if "greedy" in new.config and "greedy" not in old.config and _is_greedy(old):
            raise DataError(
                f"the images of {old.row.cell_key} ({old.label}) were sampled greedily with noise among close logits "
                f"by an earlier version, and those of {new.row.cell_key} without; run the sweep of the first again."
            )


def _is_greedy(side: Side) -> bool:
    config = side.config
    if config["method"] not in METHODS:
        return False
    knobs = {key: value for key, value in config["knobs"].items() if not key.endswith("guidance")}
    method = configure(config["method"], knobs)
    try:
        card = load_card(config["target"])
    except UserError:  # a family that is not here any more: the knobs must do
        return method.draws_greedily({"guidance": 1, "temperature": 1, "top_k": 0, "top_p": 1, "draft_guidance": 1})
    return method.draws_greedily(card.sampler) or conditions_are_greedy(card)


def _metrics(row: CellRow) -> dict[str, Mapping[str, Any]]:
    """The metrics of a row, with forwards from the counters where they were not evaluated, and latency left out."""
    found: dict[str, Mapping[str, Any]] = dict(row.metrics)
    if FORWARDS not in found and (values := forwards_of(row)):
        found[FORWARDS] = {"direction": "lower", "unit": "forwards", "per_sample": values, "version": "counters"}
    return found


def _pair_metric(name: str, ours: Metrics, theirs: Metrics, baseline: str) -> PairMetric:
    one, other = ours[name], theirs[name]
    direction: Direction = one["direction"]
    a, b = one.get("per_sample") or {}, other.get("per_sample") or {}
    shared = sorted(a.keys() & b.keys())
    empty = PairMetric(name, direction, one["unit"], one.get("value"), other.get("value"), Estimate(None))
    for reason in (one.get("reason"), other.get("reason")):
        if reason and (one.get("value") is None or other.get("value") is None):
            return replace(empty, difference=Estimate(None, reason=reason))
    if changed := [key for key in ("version", "protocol") if one.get(key) != other.get(key)]:
        return replace(empty, difference=Estimate(None, reason=f"scored by another {changed[0]} on each side"))
    if not shared:
        reason = "no sample is scored on both sides" if a and b else "no values per sample, so nothing can be paired"
        return replace(empty, difference=Estimate(None, reason=reason))
    try:
        gap, value_a, value_b = _gap(name, ours, theirs, shared)
    except DataError as error:
        return replace(empty, difference=Estimate(None, reason=str(error)))
    test = _test(name, ours, theirs, a, b)
    wins = None if direction == "none" else paired_tests.count_wins(a, b, direction=_side(direction))
    return PairMetric(
        name,
        direction,
        one["unit"],
        value_a,
        value_b,
        gap,
        **_wins(wins),
        test=f"{test.name} ({test.note})" if test else "",
        p_value=test.p_value if test else None,
        judged=_judged(name, gap, direction, baseline),
    )


def _wins(wins: Wins | None) -> dict[str, Any]:
    return {} if wins is None else {"wins": (wins.better, wins.equal, wins.worse), "win_rate": wins.rate}


def _gap(name: str, ours: Metrics, theirs: Metrics, shared: Sequence[str]) -> tuple[Estimate, float, float]:
    """(difference, value of A, value of B) over the samples that both have."""
    a, b = ours[name]["per_sample"], theirs[name]["per_sample"]
    if name == OVERALL:
        gap = paired_overall_difference(_by_task(ours), _by_task(theirs))
    else:
        gap = statistics.paired_difference(a, b)
    gap = paired_tests.limits_where_all_agree(gap, a, b, whole=statistics.share_whole(ours[name]))
    tags = _task_of(ours) if name == OVERALL else dict.fromkeys(shared, "")
    both = [key for key in shared if key in tags]
    return gap, _stratified_mean(a, both, tags), _stratified_mean(b, both, tags)


def _stratified_mean(values: Values, samples: Sequence[str], strata: Mapping[str, str]) -> float:
    """Unweighted mean of the strata's means."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        groups.setdefault(strata[sample], []).append(values[sample])
    return math.fsum(math.fsum(group) / len(group) for group in groups.values()) / len(groups)


def _test(name: str, ours: Metrics, theirs: Metrics, a: Values, b: Values) -> PairedTest | None:
    """For GenEval: McNemar at one image per prompt, else sign flips by prompt; nothing for other metrics."""
    if not name.startswith("geneval/"):
        return None
    if paired_tests.has_one_image_per_prompt(a, b):
        return paired_tests.mcnemar_exact(a, b)
    return paired_tests.sign_flip_test(a, b, strata=_task_of(ours) if name == OVERALL else None)


def _judged(name: str, gap: Estimate, direction: Direction, baseline: str) -> str:
    """What the interval shows; against `ar`, GenEval's overall is held to the margin of non-inferiority."""
    if gap.interval is None:
        return ""
    low, high = gap.interval
    shown = "no difference shown"
    if low > 0 or high < 0:
        is_good = (low > 0) == (direction != "lower")
        shown = ("A higher" if low > 0 else "A lower") if direction == "none" else "A better" if is_good else "A worse"
    if name != OVERALL or baseline != "ar":
        return shown
    verdict = statistics.non_inferiority(gap, margin=NON_INFERIORITY_MARGIN).verdict
    held = "non-inferiority not shown" if verdict == "not shown" else verdict
    return f"{shown}; {held} at margin {NON_INFERIORITY_MARGIN:g}"


def _by_task(metrics: Metrics) -> dict[str, Values]:
    found = {task: metrics.get(f"geneval/{task}", {}).get("per_sample") or {} for task in GENEVAL_TASKS}
    return {task: values for task, values in found.items() if values}


def _task_of(metrics: Metrics) -> dict[str, str]:
    return {sample: task for task, values in _by_task(metrics).items() for sample in values}


def _side(direction: Direction) -> Literal["higher", "lower"]:
    return "lower" if direction == "lower" else "higher"


def _change_metric(wanted: str | None, ours: Metrics, theirs: Metrics) -> str:
    """The metric that changes are sorted by; "" where the sides share none with values per sample."""
    usable = [
        name for name in ours
        if name in theirs and ours[name].get("per_sample") and theirs[name].get("per_sample")
    ]  # fmt: skip
    if wanted is not None and wanted not in usable:
        raise unknown_name("metric with values per sample", wanted, usable)
    return wanted or next((name for name in (*CHANGE_METRICS, *usable) if name in usable), "")


def _changes(a: Side, b: Side, ours: Metrics, theirs: Metrics, name: str, num: int) -> list[Change]:
    """Half the largest gains, half the largest losses, each by size; none of size zero."""
    left, right = ours[name]["per_sample"], theirs[name]["per_sample"]
    second = [(m[other]["per_sample"] if other in m else {}) for other in CHANGE_METRICS[1:] for m in (ours, theirs)]

    def size(sample: str) -> tuple[float, float, str]:
        x, y = (side.get(sample, 0.0) for side in second)
        return -abs(left[sample] - right[sample]), -abs(x - y), sample

    moved = sorted((s for s in left.keys() & right.keys() if left[s] != right[s]), key=size)
    gains = [s for s in moved if left[s] > right[s]]
    losses = [s for s in moved if left[s] < right[s]]
    half = num // 2
    num_losses = min(len(losses), max(half, num - len(gains)))
    chosen = sorted([*gains[: num - num_losses], *losses[:num_losses]], key=size)
    texts = _texts(a, chosen)
    return [Change(s, texts.get(s, ""), left[s], right[s]) for s in chosen]


def _texts(side: Side, sample_ids: Sequence[str]) -> dict[str, str]:
    """sample_id -> prompt text, read from the staged rows."""
    from mulosd.stage.read import iter_cell

    wanted = set(sample_ids)
    rows = (row for chunk in iter_cell(side.store.cell_dir(side.row.cell_key)) for row in chunk)
    return {row["sample_id"]: row["prompt"] for row in rows if row["sample_id"] in wanted}


def _notes(a: Side, b: Side) -> list[str]:
    notes = ["p values are not adjusted for the number of metrics; intervals are 95 %, bootstrapped over prompts"]
    if a.config.get("prompts") != b.config.get("prompts"):
        notes.append("the prompt lists differ: only samples with the same id are compared")
    if a.config.get("base_seed") != b.config.get("base_seed"):
        notes.append("the base seeds differ: pairs share the prompt but not the noise")
    if a.row.target != b.row.target:
        notes.append("the targets differ: pairs share the prompt but not the grid")
    return [f"{note[0].upper()}{note[1:]}." if note[0] != "p" else f"{note}." for note in notes]


def _environment(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The record as flat `versions.torch` names; loads change from minute to minute and are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _environment(value, f"{prefix}{key}.")
        elif not key.startswith("load"):
            flat[f"{prefix}{key}"] = value
    return flat


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    names = dict.fromkeys([*a, *b])
    return [
        Setting(name, str(a.get(name, NOT_A_KNOB)), str(b.get(name, NOT_A_KNOB)))
        for name in names
        if a.get(name, NOT_A_KNOB) != b.get(name, NOT_A_KNOB)
    ]


def _short(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.2f}"
