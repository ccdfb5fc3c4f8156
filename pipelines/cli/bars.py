"""A progress bar on stderr for `run_sweep`: done of total, with what was cached, is running and failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.latency.bench import BenchProgress
from pipelines.run.progress import Progress, ProgressCallback

UNITS = {"encode": "prompt", "decode": "image", "score": "chunk"}


@contextmanager
def progress_bar(*, disable: bool = False) -> Iterator[ProgressCallback]:
    """A callback that draws one bar per stage; `disable` draws nothing."""
    from tqdm import tqdm

    bars: dict[str, Any] = {}

    def show(at: Progress) -> None:
        if at.stage not in bars:
            for bar in bars.values():
                bar.close()
            # Cached work is no work: the bar starts there, so that its rate is the rate of this run.
            bars[at.stage] = tqdm(
                total=at.total, initial=at.cached, desc=at.stage, unit=UNITS[at.stage], disable=disable, mininterval=0.5
            )
        bar = bars[at.stage]
        bar.set_postfix_str(f"cached {at.cached}, running {at.running}, failed {at.failed}", refresh=False)
        bar.update(at.done - bar.n)
        bar.refresh()

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()


@contextmanager
def bench_bar(*, disable: bool = False) -> Iterator[BenchProgress]:
    """A callback (done, total, label) for `run_bench` that draws one bar."""
    from tqdm import tqdm

    bars: list[Any] = []

    def show(done: int, total: int, label: str) -> None:
        if not bars:
            bars.append(tqdm(total=total, desc="bench", unit="image", disable=disable))
        bars[0].set_postfix_str(label, refresh=False)
        bars[0].update(done - bars[0].n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()
