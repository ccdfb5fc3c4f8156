"""Quality of a trained latent up-sampler for its card: true draft-grid codes of val scenes, up-sampled and judged.

The codes are those of the small renderings, so no model of the family takes part. Beside the up-sampler stand
`bicubic` and, as the ceiling, the large renderings' own codes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mulosd.errors import DecodingFailed
from mulosd.families.card import Card
from mulosd.families.latent_card import LatentCard
from mulosd.types import Prompt
from pipelines.card.quality import DIGITS
from pipelines.card.vq_quality import picture_summary, render_prompts

COUNT = 120  # val scenes, 20 of each task
SEED = 0
BASELINE = "bicubic"


def measure_upsampler(latent: LatentCard, card: Card, *, vq: Any, count: int | None = None) -> dict[str, Any]:
    """Summaries of the up-sampler, `bicubic` and the true codes, each with its share of true codes."""
    from mulosd.prompts import load_prompts
    from mulosd.upsample import build_upsampler
    from mulosd.upsample.latent import load_latent

    assert card.draft_grid is not None
    assert card.ratio is not None
    spec = {"name": "scenes", "split": "val", "count": count or COUNT, "seed": SEED}
    prompts = load_prompts(spec)
    bicubic = build_upsampler(BASELINE, vq=vq, draft_grid=card.draft_grid, ratio=card.ratio)
    draws = {
        "upsampler": _Draw(vq, card, load_latent(latent, vq, card.draft_grid)),
        BASELINE: _Draw(vq, card, bicubic),
        "true_codes": _Draw(vq, card, None),
    }
    quality: dict[str, Any] = {"prompts": spec}
    for name, draw in draws.items():
        summary = picture_summary(prompts, draw, image_px=card.image_px)
        quality[name] = {"token_agreement": {"value": round(draw.agreement, DIGITS), "n": draw.codes}, **summary}
    return quality


class _Draw:
    """Pictures of the up-sampled codes of the small renderings; counts the codes that are the true ones."""

    def __init__(self, vq: Any, card: Card, upsample: Callable[[Any, int], Any] | None) -> None:
        self._vq, self._card, self._upsample = vq, card, upsample
        self.codes = self._equal = 0

    @property
    def agreement(self) -> float:
        """Share of equal codes."""
        return self._equal / self.codes

    def __call__(self, prompts: Sequence[Prompt], originals: np.ndarray) -> np.ndarray:
        import torch

        from mulosd.targets.target import finite, to_uint8
        from mulosd.training.vq import to_unit

        with torch.inference_mode():
            true = codes = self._vq.encode(to_unit(torch.from_numpy(originals)))
            if self._upsample is not None:
                small = render_prompts(prompts, self._card.image_px // (self._card.ratio or 1))
                codes = self._upsample(self._vq.encode(to_unit(torch.from_numpy(small))), 0)
            self.codes += codes.numel()
            self._equal += int((codes == true).sum())
            if bool((codes < 0).any()):
                raise DecodingFailed("the numbers of the up-sampler are not finite (NaN or infinite); train it again.")
            return np.asarray(to_uint8(finite(self._vq.decode(codes))))
