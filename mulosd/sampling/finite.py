"""Which images of a batch met numbers that are not finite, as float16 gives above 65504, and where.

Every check stays on the device; `failures` is the one that waits for it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

# Phase -> what is checked in it.
SUBJECTS = {
    "condition": "the features of the prompt",
    "draft": "the drafter's logits",
    "upsample": "the numbers of the up-sampler",
    "verify": "the target's logits at the verification",
    "resample": "the target's logits",
    "refresh": "the target's logits at a refresh",
    "downsample": "the pixels of the scaled-down image",
    "detokenize": "the decoded pixels",
}


def largest(values: Tensor) -> Tensor:
    """Largest magnitude along the last axis, [..., V] -> [...]: NaN and infinity stay what they are."""
    return values.abs().amax(-1)


def where_finite(codes: Tensor, *sources: Tensor) -> Tensor:
    """Codes [B, ...], but -1 throughout for an image with any source [B, ...] that is not finite."""
    is_finite = torch.stack([largest(source.flatten(1)).isfinite() for source in sources]).all(0)
    return torch.where(is_finite.reshape(-1, *[1] * (codes.ndim - 1)), codes, -1)


class FiniteCheck:
    """Of a batch: in which phase, if in any, an image first met a number that is not finite."""

    def __init__(self, batch: int) -> None:
        self._failed: dict[str, set[int]] = {}
        self._largest: dict[str, Tensor] = {}
        self._batch = batch

    def see(self, phase: str, values: Tensor, real: Tensor | None = None) -> None:
        """Check values [B, ...]; with `real` [B, Q] only those rows of values [B, Q, V] that mean anything."""
        found = largest(values.flatten(1)) if real is None else largest(values).masked_fill(~real, 0).amax(1)
        known = self._largest.get(phase)
        self._largest[phase] = found if known is None else torch.maximum(known, found)
        self._failed.setdefault(phase, set())

    def fail(self, phase: str, images: Iterable[int]) -> None:
        """Mark images that are known on the host to have failed."""
        self._failed.setdefault(phase, set()).update(images)

    def failures(self) -> list[str | None]:
        """Per image None, or a sentence without its end; waits for the device once."""
        if self._largest:
            flags = torch.stack([~found.isfinite() for found in self._largest.values()]).cpu()
            for phase, images in zip(self._largest, flags, strict=True):
                self._failed[phase].update(images.nonzero()[:, 0].tolist())
        phases = [next((p for p, images in self._failed.items() if b in images), None) for b in range(self._batch)]
        return [None if phase is None else _sentence(phase) for phase in phases]


def _sentence(phase: str) -> str:
    return f"{SUBJECTS.get(phase, f'the numbers of the phase {phase}')} are not finite (NaN or infinite)"
