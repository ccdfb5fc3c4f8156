"""Which share of a sweep's time is decoding: seconds inside `Target.decode`, over actors × wall time of the whole run.

    PYTHONPATH=. python bench/decoding_share.py sweeps/tiny-mid.yaml --set target=tiny-high --set prompts.count=64

The run is that of `mulosd run SWEEP --executor ray` into a temporary store: start of Ray, loading of weights, decoding,
publishing, scoring, table, figures and MLflow. This module stands in for the sweep's families, so that every loaded
target notes what its calls took; nothing else differs.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from mulosd.families import card as families
from pipelines.compare.report import write_report
from pipelines.host.provenance import machine
from pipelines.plan.shipped import find_sweep
from pipelines.plan.sweep import load_sweep
from pipelines.run.driver import run_sweep
from pipelines.run.progress import Progress
from pipelines.store.layout import Store
from pipelines.tracking.log_sweep import track

NOTES = "MULOSD_SHARE_NOTES"  # environment variable: a folder with one file of seconds per process


def __getattr__(name: str) -> Any:
    return getattr(families, name)


class TimedTarget:
    """A target that notes the seconds of each call of `decode`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def decode(self, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        images = self._target.decode(*args, **options)
        with (Path(os.environ[NOTES]) / str(os.getpid())).open("a") as file:
            file.write(f"{time.perf_counter() - start}\n")
        return images


def load_target(target_id: str, **options: Any) -> TimedTarget:
    """The real target, timed."""
    return TimedTarget(families.load_target(target_id, **options))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweep")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the sweep")
    parser.add_argument("--workers", type=int, default=2, help="Ray actors")
    options = parser.parse_args()
    sweep = load_sweep(find_sweep(options.sweep), options.set, families="bench.decoding_share")
    ends: dict[str, float] = {}

    def show(at: Progress) -> None:
        ends[at.stage] = time.monotonic()

    facts = machine()
    print(f"{facts['cpus']} × {facts['processor']}, load {facts['load_1min']} before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[NOTES] = str(Path(folder) / "notes")
        Path(os.environ[NOTES]).mkdir()
        start = time.monotonic()
        report = run_sweep(sweep, out=Path(folder) / "store", executor="ray", workers=options.workers, progress=show)
        ends["end of Ray"] = time.monotonic()
        store = Store.existing(report.store)
        write_report(store, report.sweep_key)
        assert track(store, report.sweep_key)
        wall = time.monotonic() - start
        by_process = [sum(map(float, path.read_text().split())) for path in Path(os.environ[NOTES]).iterdir()]
    print(report.summary())
    for name, end in [*ends.items(), ("table, figures, MLflow", start + wall)]:
        print(f"until {name}: {end - start:.1f} s")
    print(f"seconds of decoding by actor: {', '.join(f'{seconds:.1f}' for seconds in by_process)}")
    share = sum(by_process) / (options.workers * wall)
    print(f"decoding: {share:.1%} of {options.workers} actors × {wall:.1f} s")


if __name__ == "__main__":
    main()
