"""Value types that cross layers: prompts, decoding counters, one decoded image, one estimated number.

Frozen or plain dataclasses of numbers, strings and numpy arrays; picklable, never a tensor on a device.
This module imports numpy only, so that planning and tables stay light.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Image = npt.NDArray[np.uint8]  # [height, width, 3], RGB

Direction = Literal["higher", "lower", "none"]  # which values of a metric are better
Values = Mapping[str, float]  # sample_id -> value

# Cells of a status map [H, W] (uint8), as drawn by the gallery.
STATUS_ACCEPTED = 0
STATUS_REJECTED = 1
STATUS_EXPANDED = 2
STATUS_SAMPLED = 3  # methods without a draft: every token is sampled by the target

GENEVAL_TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")


@dataclass(frozen=True)
class Prompt:
    """One prompt of a benchmark.

    benchmark: "scenes", "geneval", "coco" or "dpg"; prompt_id: stable inside the benchmark, and
    together they name samples `<benchmark>/<prompt_id>/<image_index>`. metadata: what the
    evaluators of that benchmark need (GenEval: tag, include, exclude), JSON-serialisable.
    """

    benchmark: str
    prompt_id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptTokens:
    """What an encoder made of a text: tokens that it read and knows, tokens (or words) that it does not know, and
    tokens that were cut off because the text is longer than it reads."""

    read: int
    unknown: int = 0
    cut: int = 0

    @property
    def loss(self) -> str:
        """What of the text did not reach the model, in a few words; "" where all did."""
        parts = [
            "nothing of it is known" if not self.read else "",
            f"{self.unknown} unknown" if self.unknown else "",
            f"{self.cut} cut off" if self.cut else "",
        ]
        return ", ".join(part for part in parts if part)


@dataclass
class DecodeStats:
    """Raw counters of one decoded image (architecture names; ratios are derived on reading).

    A forward counts for an image when the image has a real query in the call; with guidance the
    conditional and unconditional rows of one call are one forward. accepted = drafted - rejected.
    rejected = |R_T|, resampled = |R_X|, expanded = |R_X \\ R_T|; where rejected drafts are drafted again, R_T is every
    discarded draft and drafted counts each attempt. forwards_draft are all of the drafter's, feedback included.
    chosen_taus: the tau of each cycle where `resampled_fraction` chose it, else none. As a fixed tau it gives the same
    cells.
    """

    forwards_draft: int = 0
    forwards_verify: int = 0
    forwards_resample: int = 0
    forwards_refresh: int = 0
    tokens_fed: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    resampled: int = 0
    expanded: int = 0
    cycles: int = 0
    chosen_taus: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    time_condition_s: float = 0.0
    time_draft_s: float = 0.0
    time_upsample_s: float = 0.0
    time_downsample_s: float = 0.0
    time_verify_s: float = 0.0
    time_resample_s: float = 0.0
    time_detokenize_s: float = 0.0

    @property
    def forwards(self) -> int:
        """All forwards of both models."""
        return sum(int(getattr(self, name)) for name in FORWARD_COUNTERS)


FORWARD_KINDS = ("draft", "verify", "resample", "refresh")
FORWARD_COUNTERS = tuple(f"forwards_{kind}" for kind in FORWARD_KINDS)
COUNTERS = (
    *FORWARD_COUNTERS,
    "tokens_fed",
    "drafted",
    "accepted",
    "rejected",
    "resampled",
    "expanded",
    "cycles",
)


@dataclass
class Decoded:
    """One decoded image.

    tokens: int32 [H, W] target-grid codes; image: uint8 [height, width, 3] RGB;
    status: uint8 [H, W] of STATUS_* values; stats: raw counters.
    frames: optional snapshots of (tokens [H, W] with -1 where undecided) for an animation. prompt_tokens: what the
    encoder read of the prompt, where it was encoded for this image and says so.
    """

    tokens: np.ndarray
    image: np.ndarray
    status: np.ndarray
    stats: DecodeStats
    frames: list[np.ndarray] = field(default_factory=list)
    prompt_tokens: PromptTokens | None = None


class Interval(NamedTuple):
    """Limits of a two-sided 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """One number with its limits; `reason` says why the value or the interval is None.

    n: samples used; n_clusters: prompts they belong to; n_unpaired: samples of one side only, which were left out.
    """

    value: float | None
    interval: Interval | None = None
    n: int = 0
    n_clusters: int = 0
    n_unpaired: int = 0
    reason: str = ""
