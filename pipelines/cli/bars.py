"""What `run_sweep` says on stderr while it runs: a bar on a terminal, a line a minute in a log."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

from pipelines.latency.bench import BenchProgress
from pipelines.run.progress import UNITS, Progress, ProgressCallback

LINE_S = 60.0  # between two lines in a log


def progress_shown(*, disable: bool = False) -> AbstractContextManager[ProgressCallback]:
    """A callback that shows progress on stderr; `disable` shows nothing."""
    return progress_bar(disable=disable) if disable or sys.stderr.isatty() else progress_lines()


@contextmanager
def progress_bar(*, disable: bool = False) -> Iterator[ProgressCallback]:
    """A callback that draws one bar per stage; `disable` draws nothing."""
    from tqdm import tqdm

    bars: dict[str, Any] = {}

    def show(at: Progress) -> None:
        if at.stage not in bars:
            for bar in bars.values():
                bar.close()
            # Cached work does not count: the bar starts there, so that its rate is the rate of this run.
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
def progress_lines(*, every_s: float = LINE_S) -> Iterator[ProgressCallback]:
    """A callback that writes a line at the begin and the end of a stage, and one every `every_s` seconds between them,
    also while no task ends."""
    lines = _Lines()
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(every_s):
            lines.write()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield lines.show
    finally:
        is_over.set()
        ticker.join()


class _Lines:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Progress | None = None
        self._began = 0.0

    def show(self, at: Progress) -> None:
        with self._lock:
            is_new = self._latest is None or self._latest.stage != at.stage
            if is_new:
                self._began = time.monotonic()
            self._latest = at
        if is_new or not at.running:
            self.write()

    def write(self) -> None:
        with self._lock:
            if self._latest is not None:
                click.echo(self._latest.line(self._latest.eta_s(time.monotonic() - self._began)), err=True)


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
