"""What verification lets pass: share of rejected cells where the truth is known, by draft and by region.

    python bench/verification.py --target tiny-high [--count 48] [--pool-k 16] [--guidance G]

Scenes of the val split that name a pattern are rendered, tokenized and offered to the target as if they were drafts:
the scene itself, the same scene *without its patterns*, and the small rendering through each up-sampler. `pattern`
cells are those whose code the pattern changes. A target that heeds the caption rejects the plain scene there and the
true scene nowhere. Nothing is decoded and nothing is written.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from dashboards.markdown import markdown_table
from mulosd.methods import UPSAMPLERS
from mulosd.scenes.world import Scene, sample_scenes

TAUS = (0.001, 0.01, 0.1, 0.3)
LOW_PX = 32  # the drafter's rendering


@click.command()
@click.option("--target", required=True, help="Target id with a drafter, e.g. tiny-mid.")
@click.option("--count", type=click.IntRange(1), default=48, show_default=True, help="Scenes with a pattern.")
@click.option("--pool-k", type=click.IntRange(1), default=16, show_default=True)
@click.option("--guidance", type=click.FloatRange(min=1), help="Guidance of the verification (default: the card's).")
@click.option("--upsampler", "upsamplers", multiple=True, type=click.Choice(UPSAMPLERS), default=("repeat", "bicubic"))
def main(target: str, count: int, pool_k: int, guidance: float | None, upsamplers: Sequence[str]) -> None:
    """Print a Markdown table of rejection rates."""
    from mulosd.targets import load_target

    loaded = load_target(target)
    scale = loaded.card.sampler["guidance"] if guidance is None else guidance
    scenes = patterned(count)
    drafts = drafts_of(loaded, scenes, upsamplers)
    changed = drafts["the scene itself"] != drafts["without patterns"]
    click.echo(
        f"{target}: {count} val scenes with a pattern, pool_k {pool_k}, guidance {scale:g}; rejected cells at tau = "
        f"{', '.join(f'{tau:g}' for tau in TAUS)}; pattern cells are {float(changed.float().mean()):.0%} of all.\n"
    )
    rows = []
    for name, codes in drafts.items():
        masses = pooled_masses(loaded, scenes, codes, pool_k, scale)
        rejected = [[float((masses[where] < tau).double().mean()) for tau in TAUS] for where in (changed, ~changed)]
        rows.append([name, *(" ".join(f"{share:.1%}" for share in shares) for shares in rejected)])
    click.echo(markdown_table(("draft", "pattern cells", "other cells"), rows, align="lrr"))


def patterned(count: int) -> list[Scene]:
    """The first `count` val scenes that have a patterned object."""
    drawn = 4 * count
    while len(found := [s for s in sample_scenes("val", drawn, 0) if any(o.pattern for o in s.objects)]) < count:
        drawn *= 2
    return found[:count]


def drafts_of(loaded: Any, scenes: Sequence[Scene], upsamplers: Sequence[str]) -> dict[str, Any]:
    """Codes [B, N] of the target's grid by what they were made from."""
    from mulosd.training.gpt import scene_codes
    from mulosd.upsample import build_upsampler

    card, vq = loaded.card, loaded.vq
    plain = [
        dataclasses.replace(scene, objects=tuple(dataclasses.replace(o, pattern=None) for o in scene.objects))
        for scene in scenes
    ]
    low = scene_codes(vq, list(scenes), LOW_PX).unflatten(1, (card.draft_grid, card.draft_grid))
    drafts = {
        "the scene itself": scene_codes(vq, list(scenes), card.image_px),
        "without patterns": scene_codes(vq, plain, card.image_px),
    }
    for name in upsamplers:
        upsample = build_upsampler(name, vq=vq, draft_grid=card.draft_grid, ratio=card.ratio, card=card)
        drafts[f"{LOW_PX} px, {name}"] = upsample(low, 0).flatten(1)
    return drafts


def pooled_masses(loaded: Any, scenes: Sequence[Scene], codes: Any, pool_k: int, guidance: float) -> Any:
    """Pooled mass [B, N] of every code under the target, teacher-forced as in a verification of the whole image."""
    import torch

    from mulosd.decoding.verify import nearest_codes, pooled_mass
    from mulosd.training.gpt import words_condition

    prefix = loaded.model.prefix(words_condition([scene.caption for scene in scenes]), with_null=True)
    with torch.inference_mode():
        own, null = loaded.model.forward_train(prefix.rows, torch.cat([codes, codes])).chunk(2)
        probs = torch.softmax((null + guidance * (own - null)) / loaded.card.sampler["temperature"], -1)
        return pooled_mass(probs, codes, nearest_codes(loaded.vq.quantize.codebook(), pool_k))


if __name__ == "__main__":
    main()
