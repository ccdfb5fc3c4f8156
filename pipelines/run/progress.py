"""Where a run stands, as its driver says it."""

from collections.abc import Callable
from dataclasses import dataclass


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


ProgressCallback = Callable[[Progress], None]
