"""Score one chunk: staged rows -> the evaluator's mergeable state, in its file. Runs in a worker."""

from pathlib import Path
from typing import Any

from evaluators.types import State
from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes, sha256_hex
from pipelines.work.tasks import ScoreTask, StateReport


def score_chunk(task: ScoreTask, evaluator: Any) -> StateReport:
    """Score and publish; DataError when the chunk does not match its manifest entry."""
    from mulosd.stage.read import rows_of
    from mulosd.stage.verify import check_entry

    path = Path(task.chunk_path)
    rows = rows_of(check_entry(path, task.entry), path)
    data = evaluator.score(rows[: task.rows]).to_bytes()
    out = Path(task.out)
    publish_bytes(out, data)
    return StateReport(out.name, task.index, task.entry.sha256, task.rows, sha256_hex(data))


def load_state(path: Path, sha256: str, kind: type[State]) -> State:
    """The state in `path`; DataError when its digest differs or it holds no state of this kind."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); run the sweep again.") from error
    if sha256_hex(data) != sha256:
        raise DataError(f"{path} does not match its manifest; delete the file and run the sweep again.")
    try:
        return kind.from_bytes(data)
    except ValueError as error:
        raise DataError(f"{path} holds no score state ({error}); delete the file and run the sweep again.") from error
