"""A family's card as a Markdown page: every number on it is read from the card, so the two cannot disagree.

Given the parsed card.json. `docs/tiny.md` is this page of the shipped family; a test compares them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dashboards.markdown import markdown_table
from dashboards.numbers import DASH
from mulosd.types import GENEVAL_TASKS

Card = Mapping[str, Any]
Entry = Mapping[str, Any]

MEASURE = "mulosd measure {family} --out DIR"

_INTRO = """\
# The `{family}` family

One VQ tokenizer shared by {number} autoregressive image models, trained from scratch on procedurally rendered scenes
(`{world}`) by `mulosd train {family}`. This page is what `mulosd card {family}` prints: every number comes from the
family's `card.json`.

- positions: {positions}
- prefix: {prefix}
- null condition: {null}
"""

_READING = """\
GenEval is the unweighted mean of the six task accuracies, judged with the scenes detector. Detail is the share of
prompts naming a pattern whose object is found with the right pattern. Brackets are 95 % limits from 10,000 bootstrap
draws over *captions*, inside their task for GenEval (some tasks have a dozen captions only, so images of one caption
are resampled together); for reconstructions over scenes. `n` is the number of images."""


def card_markdown(card: Card) -> str:
    """The page: models, gate, reconstructions, test, held-out combinations, scan, where the numbers come from."""
    quality = card["quality"]
    blocks = [_intro(card), "## Models\n", _models(card)]
    if not quality:
        blocks.append(f"Quality is **not measured yet**: `{MEASURE.format(family=card['family'])}`.\n")
        return "\n".join(blocks)
    blocks += [
        *_stale(card),
        "## Gate\n",
        _gate(quality["gate"]),
        f"## Quality\n\n{_READING}\n",
        "### Reconstructions of the tokenizer\n",
        _vq(quality["vq"]),
        "### Test prompts\n",
        _scored(quality["test"]),
        "### Combinations of shape and colour that training never showed\n",
        _heldout(quality["heldout"]),
        "### Choice of guidance\n",
        _scan(quality["scan"], quality["provenance"]),
        "## Where the numbers come from\n",
        _provenance(quality["provenance"]),
    ]
    return "\n".join(blocks)


def number(entry: Entry, digits: int = 3) -> str:
    """`0.613 [0.58, 0.64]`; a dash where there is no value."""
    if entry["value"] is None:
        return DASH
    limits = entry["interval"]
    interval = f" [{limits[0]:.{digits}f}, {limits[1]:.{digits}f}]" if limits else ""
    return f"{entry['value']:.{digits}f}{interval}"


def _intro(card: Card) -> str:
    return _INTRO.format(
        family=card["family"],
        number=len(card["parts"]) - 1,
        world=card["world_version"],
        positions=card["positions"],
        prefix=card["prefix_attention"],
        null=card["null_condition"],
    )


def _models(card: Card) -> str:
    rows = []
    for target, entry in card["targets"].items():
        part, preset = card["parts"][entry["model"]], entry["sampler"]
        config, trained = part["config"], part.get("trained", {})
        drafters = [name for name in (entry["drafter"], "itself" if "grids" in config else None) if name]
        drafts = f", drafter {preset['draft_guidance']:g}" if drafters else ""
        rows.append(
            [
                f"`{target}`",
                f"{config['grid']}×{config['grid']}",
                f"{entry['image_px']} px",
                f"{config['n_layers']} layers, width {config['dim']}",
                f"{trained['seconds'] / 60:.0f} min, {trained['images']} images" if trained else DASH,
                " or ".join(drafters) or DASH,
                f"{preset['guidance']:g}{drafts}",
            ]
        )
    return markdown_table(("target", "grid", "image", "model", "trained", "drafter", "guidance"), rows) + "\n"


def _stale(card: Card) -> Iterator[str]:
    """A warning where the quality was measured on weights that are no longer there."""
    now = {name: part["sha256"] for name, part in card["parts"].items()}
    if card["quality"]["provenance"]["weights"] != now:
        command = MEASURE.format(family=card["family"])
        yield f"**The numbers below belong to other weights**; measure again: `{command}`.\n"


def _gate(gate: Card) -> str:
    verdicts = {name: verdict for name, verdict in gate.items() if name != "passed"}
    failed = [name for name, verdict in verdicts.items() if not verdict["passed"]]
    head = "Every part of the gate is passed." if gate["passed"] else f"**Not passed: {', '.join(failed)}.**"
    rows = []
    for name, verdict in verdicts.items():
        targets = verdict.get("targets") or {"": {"passed": verdict["passed"], "n": verdict["n"]}}
        for target, entry in targets.items():
            rows.append([name, verdict["rule"], target, _gate_number(entry), "yes" if entry["passed"] else "**no**"])
    return f"{head}\n\n" + markdown_table(("part", "rule", "target", "measured", "passed"), rows) + "\n"


def _gate_number(entry: Entry) -> str:
    if "value" not in entry:
        return str(entry["n"])
    text = number(entry)
    if entry.get("standard_error") is not None:
        text += f", standard error {entry['standard_error']:.3f}, against {entry['upsampler']}"
    return text


def _vq(summaries: Card) -> str:
    rows = [[f"`{target}`", number(s["psnr"], 2), *_numbers(s)] for target, s in summaries.items()]
    return markdown_table(("target", "PSNR (dB)", "GenEval", *GENEVAL_TASKS, "detail", "n"), rows) + "\n"


def _scored(by_target: Card) -> str:
    rows = [
        [f"`{target}`", name, *_numbers(summary)]
        for target, cells in by_target.items()
        for name, summary in cells.items()
    ]
    return markdown_table(("target", "method", "GenEval", *GENEVAL_TASKS, "detail", "n"), rows) + "\n"


def _heldout(by_target: Card) -> str:
    names = ("geneval/image_mean", "geneval/colors", "geneval/color_attr", "detail/accuracy")
    rows = [
        [f"`{target}`", name, *(number(summary[key]) for key in names), str(summary["geneval/image_mean"]["n"])]
        for target, cells in by_target.items()
        for name, summary in cells.items()
    ]
    return markdown_table(("target", "method", "images right", "colors", "color_attr", "detail", "n"), rows) + "\n"


def _scan(scans: Card, provenance: Card) -> str:
    rows = []
    for target, scan in scans.items():
        for knob in ("guidance", "draft_guidance"):
            for value, found in scan.get(knob, {}).items():
                is_chosen = float(value) == scan["chosen"][knob]
                row = [f"`{target}`", knob, f"**{value}**" if is_chosen else value]
                rows.append([*row, number(found["geneval/overall"]), number(found["detail/accuracy"])])
    count = provenance["splits"]["val"]["n"]
    text = (
        f"On {count} prompts of the val split; the best GenEval (bold) is the preset, the lower one among equals.\n\n"
    )
    return text + markdown_table(("target", "knob", "value", "GenEval", "detail"), rows) + "\n"


def _provenance(facts: Card) -> str:
    lines = [f"- measured: {facts['date']}, {facts['device']} {facts['dtype']}, batches of {facts['batch_size']}"]
    for split, entry in facts["splits"].items():
        shared = "" if split == "val" else f", {entry['captions_in_scan']} of them among the scan's captions too"
        lines.append(
            f"- split {split}: {entry['n']} scenes, seed {entry['prompt_seed']}, {entry['captions']} captions{shared}"
        )
    lines += [
        f"- sampling: base seed {facts['base_seed']}, drafts with ZipAR window {facts['draft_window']}",
        f"- machine: {'; '.join(facts['hardware'])}; torch threads {', '.join(map(str, facts['threads']))}",
    ]
    for versions in facts["versions"]:
        lines.append("- versions: " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())))
    for git in facts["git"]:
        dirty = f" with uncommitted changes ({git['diff_sha256']})" if git["diff_sha256"] else ""
        lines.append(f"- commit: {git['commit'] or 'unknown'}{dirty}")
    return "\n".join(lines) + "\n"


def _numbers(summary: Card) -> list[str]:
    tasks = [number(summary[f"geneval/{task}"]) if f"geneval/{task}" in summary else DASH for task in GENEVAL_TASKS]
    overall = summary["geneval/overall"]
    return [number(overall), *tasks, number(summary["detail/accuracy"]), str(overall["n"])]
