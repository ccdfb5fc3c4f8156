"""Where a run stands, as its driver says it."""

from collections.abc import Callable
from dataclasses import dataclass

UNITS = {"encode": "prompt", "decode": "image", "score": "chunk"}  # what each stage counts


@dataclass(frozen=True)
class Progress:
    """Where a run stands. stage "encode" counts conditions, "decode" images, "score" chunk states.

    done includes cached; `running` is what is left of the stage.
    """

    stage: str
    done: int
    total: int
    cached: int
    failed: int
    label: str = ""

    @property
    def running(self) -> int:
        """What is still to do."""
        return self.total - self.done

    def eta_s(self, elapsed_s: float) -> float | None:
        """Seconds until the stage ends at the rate of the `elapsed_s` since it began; None before anything was done."""
        fresh = self.done - self.cached  # what was cached says nothing about the rate
        return self.running * elapsed_s / fresh if fresh > 0 else None

    def line(self, eta_s: float | None) -> str:
        """`decode: 120 of 480 images, 40 cached, 0 failed, about 12 min left`."""
        left = f", about {_duration(eta_s)} left" if eta_s is not None and self.running else ""
        count = f"{self.done} of {self.total} {UNITS[self.stage]}s"
        return f"{self.stage}: {count}, {self.cached} cached, {self.failed} failed{left}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


ProgressCallback = Callable[[Progress], None]
