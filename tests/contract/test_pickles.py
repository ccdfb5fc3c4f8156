"""Pickles are read in one place, by a list of what they may name; nothing else in the code reads one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READER = "mulosd/files/unpickle.py"
READS = re.compile(
    r"^\s*(?:import|from) (?:_pickle|pickle|cloudpickle|dill|joblib|shelve|marshal)\b"
    r"|torch\.load\(|torch\.package|read_pickle|allow_pickle\s*=\s*True",
    re.MULTILINE,
)
PACKAGES = ("mulosd", "evaluators", "dashboards", "pipelines", "bench")


def files_that_read_pickles(root: Path) -> list[str]:
    paths = [path for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]
    return [path.relative_to(root).as_posix() for path in paths if READS.search(path.read_text(encoding="utf-8"))]


def test_one_file_reads_pickles() -> None:
    assert files_that_read_pickles(ROOT) == [READER]


@pytest.mark.parametrize(
    "line", ["import pickle", "    from pickle import loads", "torch.load(path)", "np.load(p, allow_pickle=True)"]
)
def test_another_is_noticed(tmp_path: Path, line: str) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "planted.py").write_text(line, encoding="utf-8")
    assert files_that_read_pickles(tmp_path) == ["pipelines/planted.py"]
