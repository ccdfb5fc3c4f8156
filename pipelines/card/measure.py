"""`mulosd measure tiny`: quality of a trained family for its card, by ordinary sweeps in a store (resumable, cached).

    1. reconstructions of the test scenes at each target's image size (no GPT)
    2. on the val split: `ar` at every guidance of SCAN, `draft-only` at every draft guidance; the best GenEval overall
       of each becomes the preset
    3. on the test split: `ar` and `draft-only` (two up-samplers, and the target as its own drafter where it can) at the
       presets; `ar` on held-out combinations
    4. the gate's verdicts, and where everything came from

The same command continues or does nothing; another count measures what is missing. Writes the card last, and only
its `quality` and the presets' guidance. How intervals are made is said in `pipelines.card.quality`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from mulosd.errors import ConfigError, EnvironmentProblem
from mulosd.families import card as families
from mulosd.files.folders import is_in_package
from mulosd.files.publish import problem_of_writing
from mulosd.methods import DraftOnly
from pipelines.card import measured_family
from pipelines.card.quality import Summary, advantage, choose, distinct, gate, summarise
from pipelines.card.vq_quality import EVALUATORS, vq_summary
from pipelines.plan.build import build_plan
from pipelines.plan.cells import Cell
from pipelines.plan.sweep import Sweep, parse_sweep
from pipelines.run.driver import run_sweep
from pipelines.run.progress import ProgressCallback
from pipelines.store.layout import Store
from pipelines.store.results import collect

log = logging.getLogger(__name__)

SCAN = (1.0, 1.5, 2.0, 3.0)  # guidance scales tried, of the target and of the drafter
SCAN_UPSAMPLER = "bicubic"  # the methods' default; the drafter's guidance is chosen under it
UPSAMPLERS = ("repeat", "bicubic")  # judged: they need no files beside the family's own
SEED = 0  # of the prompt lists and of sampling
BATCH_SIZE = 64
LARGE = 1024  # target tokens
MIN_COUNT = 12  # two prompts of each task: an interval needs two

# Rough seconds per image on one thread of a busy 2-core machine, batch 32 (measured 2026-11-30): for --dry-run.
AR_SECONDS = {64: 0.07, 256: 0.6, 1024: 3.5}  # by number of target tokens
DRAFT_SECONDS = 0.11
SCORE_SECONDS = 0.04
VQ_SECONDS = 0.08

Method = dict[str, Any]
ProgressBar = Callable[[], AbstractContextManager[ProgressCallback]]


@dataclass(frozen=True)
class Measurement:
    """What to measure. folder: the family's card and weights; out: the store; counts: prompts per split.

    large_count caps the prompts of targets with LARGE tokens or more, whose images cost minutes on a processor.
    """

    folder: Path
    out: Path
    count: int = 900
    scan_count: int = 120
    heldout_count: int = 200
    large_count: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("count", "scan_count", "heldout_count", "large_count"):
            value = getattr(self, name)
            if value is not None and value < MIN_COUNT:
                raise ConfigError(
                    f"{name} = {getattr(self, name)} is too small; the smallest allowed value is {MIN_COUNT}, "
                    "two prompts of each task."
                )

    @cached_property
    def cards(self) -> dict[str, families.Card]:
        """Target id -> card, as in the folder."""
        return {target: families.load_card(target, self.folder) for target in self.raw["targets"]}

    @property
    def raw(self) -> dict[str, Any]:
        """The parsed card.json."""
        return families.read_family(self.folder)

    @property
    def card_file(self) -> Path:
        """The card that is filled: the family's, or a copy in the store where that is part of the installed program."""
        return (self.out if is_in_package(self.folder) else self.folder) / "card.json"

    @property
    def drafted(self) -> list[str]:
        """Targets that have a drafter: the gate is about these."""
        return [target for target, card in self.cards.items() if card.draft_grid]

    def count_of(self, target: str, wanted: int) -> int:
        """Prompts of a target where `wanted` are asked for in general."""
        is_large = self.cards[target].num_tokens >= LARGE
        return min(wanted, self.large_count) if is_large and self.large_count else wanted

    def sweep(self, name: str, target: str, methods: Sequence[Method], split: str, count: int) -> Sweep:
        """The sweep of `methods` on `target` over `count` prompts of a split."""
        raw = {
            "name": f"measure-{name}-{target}",
            "target": target,
            "prompts": {"name": "scenes", "split": split, "count": self.count_of(target, count), "seed": SEED},
            "methods": [{"method": m["method"], "set": {k: v for k, v in m.items() if k != "method"}} for m in methods],
            "evaluators": list(EVALUATORS),
            "base_seed": SEED,
            "device": self.device,
            "batch_size": BATCH_SIZE,
        }
        return parse_sweep(raw, where="measure", families=measured_family.__name__)

    def scan(self, target: str) -> Sweep:
        """Every guidance of the target, and of its drafter where it has one."""
        methods = [ar(guidance) for guidance in SCAN]
        if self.cards[target].draft_grid:
            methods += [draft_only(SCAN_UPSAMPLER, guidance) for guidance in SCAN]
        return self.sweep("scan", target, methods, "val", self.scan_count)

    def test(self, target: str, preset: Mapping[str, float]) -> Sweep:
        """The target at its preset, and its up-sampled drafts."""
        methods = [ar(preset["guidance"])]
        if self.cards[target].draft_grid:
            methods += [draft_only(upsampler, preset["draft_guidance"]) for upsampler in UPSAMPLERS]
        if "self" in self.cards[target].drafters[1:]:
            methods.append({**draft_only(SCAN_UPSAMPLER, preset["draft_guidance"]), "drafter": "self"})
        return self.sweep("test", target, methods, "test", self.count)

    def heldout(self, target: str, preset: Mapping[str, float]) -> Sweep:
        """The target at its preset on combinations that training never showed."""
        return self.sweep("heldout", target, [ar(preset["guidance"])], "heldout", self.heldout_count)


def ar(guidance: float) -> Method:
    """The AR method at a guidance."""
    return {"method": "ar", "guidance": guidance}


def draft_only(upsampler: str, guidance: float) -> Method:
    """The up-sampled draft at a guidance of the drafter."""
    return {"method": "draft-only", "upsampler": upsampler, "draft_guidance": guidance}


def measure(what: Measurement, *, progress: ProgressBar | None = None) -> dict[str, Any]:
    """Measure and write `quality` and the presets into the card; returns `quality`.

    progress: opens the progress bar of one sweep.
    UserErrors before any work where the card cannot be written or the counts are too small. The family's card stays
    untouched when an earlier measurement gave the same numbers.
    """
    from mulosd.training.tiny import set_quality

    is_copy = what.card_file.parent != what.folder
    if not is_copy:
        _check_writable(what.folder)
    store = Store.open(what.out)
    run = _Runner(what, store, progress or (lambda: nullcontext(lambda _: None)))
    with measured_family.measured(what.folder):
        vq = _vq(what, store)
        scans = {target: run(what.scan(target)) for target in what.cards}
        chosen = {target: _chosen(scan) for target, scan in scans.items()}
        tests = {target: run(what.test(target, preset)) for target, preset in chosen.items()}
        heldout = {target: run(what.heldout(target, chosen[target])) for target in what.drafted}
    every = [cell for scored in (*scans.values(), *tests.values(), *heldout.values()) for cell in scored]
    quality = {
        "gate": _gate(what, vq, tests),
        "vq": vq,
        "scan": {target: _scan_entry(scan, chosen[target]) for target, scan in scans.items()},
        "test": {target: {cell.name: cell.summary for cell in scored} for target, scored in tests.items()},
        "heldout": {target: {cell.name: cell.summary for cell in scored} for target, scored in heldout.items()},
        "provenance": _provenance(what, store, every),
    }
    if is_copy or _without_date(what.raw["quality"]) != _without_date(quality):
        set_quality(what.folder, quality, chosen, out=what.card_file)
    return quality


def estimate(what: Measurement) -> Iterator[str]:
    """Lines for --dry-run: images, what of the scan is staged already, rough time. Writes nothing."""
    total = 0.0
    with measured_family.measured(what.folder):
        for target, card in what.cards.items():
            plan = build_plan(what.scan(target))
            report = run_sweep(what.scan(target), out=what.out, dry_run=True)
            drafts = (what.scan_count * len(SCAN) + what.count * len(UPSAMPLERS)) if card.draft_grid else 0
            full = what.scan_count * len(SCAN) + what.count + (what.heldout_count if card.draft_grid else 0)
            seconds = full * _ar_seconds(card.num_tokens) + drafts * DRAFT_SECONDS + (full + drafts) * SCORE_SECONDS
            seconds += what.count * VQ_SECONDS
            total += seconds
            yield (
                f"{target}: scan {len(plan.cells)} cells × {what.scan_count} images ({report.cached} of "
                f"{report.images} staged), in all {full} images by ar, {drafts} drafts, {what.count} reconstructions: "
                f"about {seconds / 60:.0f} min"
            )
    yield (
        f"all: about {total / 60:.0f} min on one thread of a busy processor, less on idle cores or a GPU and less what "
        "is staged; nothing was written"
    )


@dataclass(frozen=True)
class Scored:
    """One cell of a measurement: its configuration, summary, and detail values per sample."""

    name: str
    split: str
    cell: Cell
    summary: Summary
    detail: Mapping[str, float]
    captions: Mapping[str, str]


@dataclass(frozen=True)
class _Runner:
    """Runs a sweep of the measurement and summarises its cells in order."""

    what: Measurement
    store: Store
    progress: ProgressBar

    def __call__(self, sweep: Sweep) -> list[Scored]:
        log.info("measuring %s", sweep.name)
        plan = build_plan(sweep)
        with self.progress() as progress:
            run_sweep(sweep, out=self.what.out, progress=progress)
        captions = {s.sample_id: s.prompt.text for chunk in plan.cells[0].chunks for s in chunk.samples}
        rows = {row.cell_key: row for row in collect(self.store, plan.sweep_key)}
        scored = []
        for cell in plan.cells:
            metrics = rows[cell.key].metrics
            detail = metrics["detail/accuracy"]["per_sample"]
            summary = summarise(metrics, captions)
            scored.append(Scored(_name(cell), sweep.prompts["split"], cell, summary, detail, captions))
        return scored


def _name(cell: Cell) -> str:
    """`ar`, `draft-only <up-sampler>` or `draft-only <up-sampler> self`: the cells of one test sweep."""
    chosen = cell.method.upsampling()
    if chosen is None:
        return cell.method.name
    return f"{cell.method.name} {chosen.name}" + " self" * (cell.method.drafted_by() == "self")


def _vq(what: Measurement, store: Store) -> dict[str, Any]:
    from mulosd.prompts import load_prompts

    prompts = load_prompts({"name": "scenes", "split": "test", "count": what.count, "seed": SEED})
    part = what.raw["parts"]["vq"]
    identity = {key: part[key] for key in ("sha256", "config")}
    # Every target holds the one tokenizer of the family; the first has the smallest model to load.
    vq = measured_family.load_target(next(iter(what.cards)), device=what.device).vq
    options = {"vq": vq, "identity": identity, "device": what.device}
    pixels = {target: card.image_px for target, card in what.cards.items()}
    return {target: vq_summary(store.root / "vq", prompts, image_px=px, **options) for target, px in pixels.items()}


def _chosen(scan: Sequence[Scored]) -> dict[str, float]:
    """Preset fields of a target -> the best guidance of its scan."""
    preset = {"guidance": choose(_by_guidance(scan, "ar", "guidance"))}
    drafts = _by_guidance(scan, "draft-only", "draft_guidance")
    return {**preset, "draft_guidance": choose(drafts)} if drafts else preset


def _by_guidance(scan: Sequence[Scored], method: str, knob: str) -> dict[float, Summary]:
    return {getattr(one.cell.method, knob): one.summary for one in scan if one.cell.method.name == method}


def _scan_entry(scan: Sequence[Scored], preset: Mapping[str, float]) -> dict[str, Any]:
    """Overall and detail at each guidance, with what was chosen."""
    kept = ("geneval/overall", "detail/accuracy")
    entry: dict[str, Any] = {"chosen": dict(preset)}
    for method, knob in (("ar", "guidance"), ("draft-only", "draft_guidance")):
        found = _by_guidance(scan, method, knob)
        if found:
            entry[knob] = {f"{value:g}": {name: found[value][name] for name in kept} for value in found}
    return entry


def _gate(what: Measurement, vq: Mapping[str, Summary], tests: Mapping[str, list[Scored]]) -> dict[str, Any]:
    detail: dict[str, dict[str, Any]] = {}
    for target in what.drafted:
        full, *drafts = tests[target]
        detail[target] = {
            draft.name.removeprefix("draft-only "): {
                "accuracy": draft.summary["detail/accuracy"]["value"],
                "advantage": advantage(full.detail, draft.detail, full.captions),
            }
            for draft in drafts
        }
    return gate(
        n=min(what.count_of(target, what.count) for target in what.drafted),
        vq={target: vq[target] for target in what.drafted},
        ar={target: tests[target][0].summary for target in what.drafted},
        detail=detail,
    )


def _provenance(what: Measurement, store: Store, scored: Sequence[Scored]) -> dict[str, Any]:
    """Splits, seeds, counts and date, and the versions, commits, threads and machines that the images came from."""
    records = [store.read_cell(one.cell.key)["record"] for one in scored]
    captions: dict[str, list[str]] = {}
    for one in scored:
        captions[one.split] = max(captions.get(one.split, []), list(one.captions.values()), key=len)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "splits": {
            split: {"n": len(texts), "prompt_seed": SEED, **distinct(texts, captions["val"])}
            for split, texts in captions.items()
        },
        "large_count": what.large_count,
        "base_seed": SEED,
        "device": what.device,
        "dtype": "float32",
        "batch_size": BATCH_SIZE,
        "draft_window": DraftOnly().draft_window,
        "hardware": _distinct(_hardware(record["machine"], what.device) for record in records),
        "threads": _distinct(record["threads"] for record in records),
        "versions": _distinct({k: v for k, v in record["versions"].items() if v is not None} for record in records),
        "git": _distinct(record["git"] for record in records),
        "weights": {name: part["sha256"] for name, part in what.raw["parts"].items()},
    }


def _hardware(machine: Mapping[str, Any], device: str) -> str:
    words = f"{machine['cpus']} processor cores ({machine['processor'] or 'unnamed processor'})"
    if device == "cuda":
        import torch

        words += f" with {torch.cuda.get_device_name()}"
    return words


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The different values in their first order: one, unless a measurement was continued elsewhere."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _without_date(quality: Mapping[str, Any]) -> dict[str, Any]:
    """quality as the card would hold it, without the day on which it was put together."""
    plain: dict[str, Any] = json.loads(json.dumps(quality))
    plain.get("provenance", {}).pop("date", None)
    return plain


def _ar_seconds(num_tokens: int) -> float:
    nearest = min(AR_SECONDS, key=lambda known: abs(known - num_tokens))
    return AR_SECONDS[nearest] * num_tokens / nearest


def _check_writable(folder: Path) -> None:
    """EnvironmentProblem before an hour of work, not after it."""
    if problem := problem_of_writing(folder):
        raise EnvironmentProblem(
            f"{folder} cannot be written ({problem}), and the card there is what a measurement fills; give a copy of "
            "the family with --family-folder."
        )
