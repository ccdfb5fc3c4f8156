"""Quality of a family's tokenizer: scenes rendered, encoded, decoded and judged by the evaluators of the sweeps.

No prompt is decoded here, so there is no cell: the scores of one image size are one JSON file in the store, named by
everything they rest on, and are read from there the next time.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluators.registry import build_evaluator
from evaluators.statistics.intervals import bootstrap_mean
from mulosd.files.publish import publish_json, read_json
from mulosd.types import Prompt
from pipelines.card.quality import DIGITS, summarise
from pipelines.plan.cells import key_of

BATCH = 16  # scenes per call: bounds the memory of the tokenizer's attention at 128 px
VERSION = "1"  # raised whenever the numbers change for the same images
EVALUATORS = ("geneval", "detail")

Image = np.ndarray


def vq_summary(
    folder: Path, prompts: Sequence[Prompt], *, vq: Any, identity: Mapping[str, Any], image_px: int, device: str
) -> dict[str, Any]:
    """Summary (`quality.summarise`, one cluster per scene) and "psnr" of the reconstructions at `image_px`.

    prompts: scenes prompts, whose metadata carries the scene. identity: what names the tokenizer (its hash and
    configuration). Cached in `folder`.
    """
    named = {one.name: {"version": one.version, "protocol": one.protocol()} for one in _evaluators()}
    scenes = [prompt.metadata for prompt in prompts]
    key = key_of([VERSION, dict(identity), image_px, device, named, scenes])
    path = folder / f"vq-{image_px}px-{key}.json"
    if path.exists():
        return dict(read_json(path))
    summary = picture_summary(
        prompts, lambda _, originals: reconstruct(vq, originals, device=device), image_px=image_px
    )
    publish_json(path, summary)
    return summary


def picture_summary(
    prompts: Sequence[Prompt], draw: Callable[[Sequence[Prompt], Image], Image], *, image_px: int
) -> dict[str, Any]:
    """Summary (`quality.summarise`, one cluster per scene) and "psnr" of images of scenes at `image_px`.

    draw(prompts, originals): the images to judge, uint8 [B, height, width, 3] like the scenes' own renderings.
    """
    evaluators = _evaluators()
    states: list[Any] = [None] * len(evaluators)
    errors: dict[str, float] = {}
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        originals = render_prompts(part, image_px)
        pictures = draw(part, originals)
        rows = [_row(prompt, picture) for prompt, picture in zip(part, pictures, strict=True)]
        for row, picture, original in zip(rows, pictures, originals, strict=True):
            errors[row["sample_id"]] = float(np.mean((picture.astype(float) - original.astype(float)) ** 2))
        for index, evaluator in enumerate(evaluators):
            state = evaluator.score(rows)
            states[index] = state if states[index] is None else evaluator.merge(states[index], state)
    metrics: dict[str, Any] = {}
    for evaluator, state in zip(evaluators, states, strict=True):
        metrics |= {metric.name: metric.to_json() for metric in evaluator.finalize(state)}
    return {"psnr": psnr(errors), **summarise(metrics)}


def reconstruct(vq: Any, images: Image, *, device: str) -> Image:
    """uint8 [B, height, width, 3] -> codes -> uint8 [B, height, width, 3]."""
    import torch

    from mulosd.targets.target import finite, to_uint8
    from mulosd.training.vq import to_unit

    with torch.inference_mode():
        unit = to_unit(torch.from_numpy(images)).to(device)
        return np.asarray(to_uint8(finite(vq.decode(vq.encode(unit)))))


def psnr(errors: Mapping[str, float]) -> dict[str, Any]:
    """Peak signal-to-noise ratio in dB, 10 log10(255^2 / mean squared error over all pixels of all images).

    errors: sample_id -> mean squared error of an image in grey levels squared. The interval is that of the mean error.
    """
    estimate = bootstrap_mean(errors)
    if estimate.value == 0:
        return {"value": None, "interval": None, "n": estimate.n, "reason": "every reconstruction is exact"}
    limits = None
    if estimate.interval is not None and estimate.interval.low > 0:
        limits = [round(_decibel(estimate.interval.high), DIGITS), round(_decibel(estimate.interval.low), DIGITS)]
    return {"value": round(_decibel(estimate.value), DIGITS), "interval": limits, "n": estimate.n, "unit": "dB"}


def _decibel(error: float) -> float:
    return 10 * math.log10(255.0**2 / error)


def render_prompts(prompts: Sequence[Prompt], size: int) -> Image:
    """uint8 [B, size, size, 3]: the scenes of scenes prompts."""
    from mulosd.scenes.render import render
    from mulosd.scenes.world import scene_from_json

    return np.stack([render(scene_from_json(prompt.metadata["scene"]), size) for prompt in prompts])


def _evaluators() -> list[Any]:
    return [build_evaluator(name) for name in EVALUATORS]


def _row(prompt: Prompt, image: Image) -> dict[str, Any]:
    from mulosd.stage.write import encode_png

    return {
        "sample_id": f"{prompt.benchmark}/{prompt.prompt_id}/0",
        "prompt_id": prompt.prompt_id,
        "prompt": prompt.text,
        "image": {"bytes": encode_png(image), "path": None},
        "error": None,
        "metadata": json.dumps(prompt.metadata),
    }
