"""Score one chunk: staged rows -> the evaluator's mergeable state, in its file. Runs in a worker.

States are pickles, read back by an unpickler that builds numpy arrays and the evaluators' own types only,
so that a shared store cannot run code.
"""

import io
import pickle
from pathlib import Path
from typing import Any

from mulosd.errors import DataError
from mulosd.files.publish import publish_bytes, sha256_hex
from pipelines.work.tasks import ScoreTask, StateReport

STATE_MODULES = ("evaluators",)
_PLAIN = {
    "builtins": {"set", "frozenset", "complex", "bytearray"},
    "collections": {"OrderedDict", "Counter", "deque"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
}


def score_chunk(task: ScoreTask, evaluator: Any) -> StateReport:
    """Score and publish; DataError when the chunk does not match its manifest entry."""
    from mulosd.stage.read import rows_of
    from mulosd.stage.verify import check_entry

    path = Path(task.chunk_path)
    rows = rows_of(check_entry(path, task.entry), path)
    state = evaluator.score(rows[: task.rows])
    data = pickle.dumps(state, protocol=5)
    out = Path(task.out)
    publish_bytes(out, data)
    return StateReport(out.name, task.index, task.entry.sha256, task.rows, sha256_hex(data))


def load_state(path: Path, sha256: str, *, extra_modules: tuple[str, ...] = ()) -> Any:
    """The state in `path`; DataError when its digest differs or it holds a type that states may not have."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); run the sweep again.") from error
    if sha256_hex(data) != sha256:
        raise DataError(f"{path} does not match its manifest; delete the file and run the sweep again.")
    return _StateUnpickler(io.BytesIO(data), path, (*STATE_MODULES, *extra_modules)).load()


class _StateUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path, modules: tuple[str, ...]) -> None:
        super().__init__(file)
        self._path, self._modules = path, modules

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        found = super().find_class(module, name) if self._is_own(module) and "." not in name else None
        if not isinstance(found, type):  # a function would be code to run
            raise DataError(
                f"{self._path} holds {module}.{name}, which is not part of a score state; delete it and run again."
            )
        return found

    def _is_own(self, module: str) -> bool:
        return any(module == own or module.startswith(f"{own}.") for own in self._modules)
