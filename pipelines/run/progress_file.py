"""progress.json in a sweep's folder: where a run stands, for whoever watches it from outside its terminal.

    state      running · finished · stopped (by a failure or an interrupt; the same command continues)
    stage      encode (counts conditions), decode (counts images) or score (counts chunk states)
    done, total, cached, running, failed    as in `progress.Progress`
    eta_s      seconds until the stage ends at the rate of this run; null before anything was done
    elapsed_s, started_at, updated_at
    job        the submission id of the Ray job that runs it; null outside one

Replaced as a whole: a reader never sees a part. A `running` file that is no longer updated is that of a dead process.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mulosd.files.publish import publish_bytes
from pipelines.host.job_env import submission_id
from pipelines.run.progress import Progress, ProgressCallback

NAME = "progress.json"
MIN_INTERVAL_S = 2.0  # between two writes; each waits for the disk


@contextmanager
def progress_file(
    folder: Path, *, then: ProgressCallback, clock: Callable[[], float] = time.monotonic
) -> Iterator[ProgressCallback]:
    """A callback that keeps `folder`/progress.json up to date and passes everything on to `then`."""
    writer = _Writer(folder / NAME, clock)

    def show(at: Progress) -> None:
        writer.show(at)
        then(at)

    try:
        yield show
    except BaseException:
        writer.close("stopped")
        raise
    writer.close("finished")


@dataclass
class _Writer:
    path: Path
    clock: Callable[[], float]
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    latest: Progress | None = None
    stage_began: float = 0.0
    written: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def show(self, at: Progress) -> None:
        now = self.clock()
        is_new = self.latest is None or self.latest.stage != at.stage
        if is_new:
            self.stage_began = now
        self.latest = at
        if is_new or now - self.written >= MIN_INTERVAL_S:
            self.write("running", now)

    def close(self, state: str) -> None:
        """Write the final state, if there has been any progress."""
        if self.latest is not None:
            self.write(state, self.clock())

    def write(self, state: str, now: float) -> None:
        at = self.latest
        assert at is not None
        eta_s = at.eta_s(now - self.stage_began) if state == "running" else None
        content = {
            "state": state,
            "stage": at.stage,
            "label": at.label,
            "done": at.done,
            "total": at.total,
            "cached": at.cached,
            "running": at.running,
            "failed": at.failed,
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "elapsed_s": round(now - self.began, 1),
            "job": submission_id(),
            "started_at": self.started_at,
            "updated_at": datetime.now(UTC).isoformat(),
        }
        publish_bytes(self.path, (json.dumps(content, indent=1) + "\n").encode("utf-8"))
        self.written = now


def read_progress(root: Path, job: str) -> str | None:
    """Where the run of a job in the store `root` stands, for people; None where no file of it is here."""
    for path in (root / "sweeps").glob(f"*/{NAME}"):
        content = json.loads(path.read_bytes())
        if content.get("job") == job:
            fields = {name: content[name] for name in ("stage", "done", "total", "cached", "failed")}
            when = datetime.fromisoformat(content["updated_at"]).astimezone()
            return f"{Progress(**fields).line(content['eta_s'])} ({content['state']}, {when:%Y-%m-%d %H:%M:%S})"
    return None
