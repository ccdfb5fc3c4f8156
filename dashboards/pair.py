"""Two cells side by side: one object of plain values, as Markdown or JSON. Knows no statistics and no store."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dashboards.markdown import escape, markdown_table
from dashboards.numbers import DASH, fixed
from dashboards.render import ARROWS
from mulosd.types import Direction, Estimate


@dataclass(frozen=True)
class PairMetric:
    """One metric of both sides over the samples that both have.

    a, b: means (None with a `reason`); difference: a - b with its 95 % interval; wins: prompts on which a is better,
    equal and worse, None where no direction is better; test and p_value: None where none applies; judged: what
    the interval shows.
    """

    name: str
    direction: Direction
    unit: str
    a: float | None
    b: float | None
    difference: Estimate
    wins: tuple[int, int, int] | None = None
    win_rate: float | None = None
    test: str = ""
    p_value: float | None = None
    judged: str = ""


@dataclass(frozen=True)
class Setting:
    """A setting that the sides do not share; values as text."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Change:
    """A prompt with its values on both sides."""

    sample_id: str
    prompt: str
    a: float
    b: float


@dataclass(frozen=True)
class Pair:
    """The whole comparison. settings: what images depend on; environment: what they were made with.

    change_metric: what `changes` are sorted by. notes: what a reader must know before trusting it.
    """

    label_a: str
    label_b: str
    cell_a: str
    cell_b: str
    metrics: tuple[PairMetric, ...]
    settings: tuple[Setting, ...]
    environment: tuple[Setting, ...]
    change_metric: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def pair_json(pair: Pair) -> str:
    """All values in full precision, ending in a newline."""
    content: dict[str, Any] = asdict(pair)
    for one in content["metrics"]:
        one |= {"n_prompts": one["difference"].pop("n_clusters"), "n_unpaired": one["difference"].pop("n_unpaired")}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def pair_markdown(pair: Pair) -> str:
    """For people: metrics, what differs, the prompts that changed most."""
    blocks = [
        f"**A: {escape(pair.label_a)}** (`{pair.cell_a}`)  \n**B: {escape(pair.label_b)}** (`{pair.cell_b}`)",
        _metric_table(pair.metrics),
        "\n".join(f"- {note}" for note in (*_reasons(pair.metrics), *pair.notes)),
        _setting_table("What differs in the configuration", pair.settings),
        _setting_table("What they were made with differs in", pair.environment) if pair.environment else "",
        _change_table(pair),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _metric_table(metrics: Sequence[PairMetric]) -> str:
    rows = []
    for one in metrics:
        name = " ".join(part for part in (one.name, ARROWS[one.direction]) if part)
        limits = one.difference.interval
        interval = f"[{_number(limits[0], signed=True)}, {_number(limits[1], signed=True)}]" if limits else DASH
        values = [_number(one.a), _number(one.b), _number(one.difference.value, signed=True), interval]
        rows.append([name, *values, _counted(one), _won(one), _p(one), one.judged or DASH])
    head = ("metric", "A", "B", "A − B", "95 % interval", "n", "A wins", "p", "shows")
    return markdown_table(head, rows, align="lrrrrrrrl")


def _counted(one: PairMetric) -> str:
    """`960`, or `240 × 4` prompts × images where a prompt has several."""
    n, prompts = one.difference.n, one.difference.n_clusters
    if not n:
        return DASH
    images, rest = divmod(n, prompts)
    if images == 1 and not rest:
        return str(prompts)
    return f"{prompts} × {images}" if not rest else f"{n} in {prompts}"


def _won(one: PairMetric) -> str:
    if one.wins is None or one.win_rate is None:
        return DASH
    better, equal, worse = one.wins
    return f"{100 * one.win_rate:.0f}% ({better}:{equal}:{worse})"


def _p(one: PairMetric) -> str:
    if one.p_value is None:
        return DASH
    return "<0.001" if one.p_value < 0.001 else f"{one.p_value:.3f}"


def _reasons(metrics: Sequence[PairMetric]) -> list[str]:
    lines = []
    for one in metrics:
        if one.difference.reason:
            lines.append(f"{one.name}: {one.difference.reason.rstrip('.')}.")
        if one.difference.n_unpaired:
            lines.append(f"{one.name}: {one.difference.n_unpaired} samples are scored on one side only and left out.")
        if one.test:
            lines.append(f"{one.name}: p by {one.test}.")
    return lines


def _setting_table(title: str, settings: Sequence[Setting]) -> str:
    if not settings:
        return f"{title}: nothing."
    rows = [[one.name, one.a, one.b] for one in settings]
    return f"{title}:\n\n" + markdown_table(("", "A", "B"), rows, align="lll")


def _change_table(pair: Pair) -> str:
    if not pair.change_metric:
        return ""
    if not pair.changes:
        return f"No prompt changes in {pair.change_metric}."
    rows = []
    for one in pair.changes:
        values = [_number(one.a), _number(one.b), _number(one.a - one.b, signed=True)]
        rows.append([f"{one.prompt} (`{one.sample_id}`)", *values])
    table = markdown_table(("prompt", "A", "B", "A − B"), rows, align="lrrr")
    return f"Largest changes in {pair.change_metric}:\n\n{table}"


def _number(value: float | None, *, signed: bool = False) -> str:
    """Three digits after the point below 10, one from 100."""
    if value is None:
        return DASH
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return fixed(value, digits, signed=signed)
