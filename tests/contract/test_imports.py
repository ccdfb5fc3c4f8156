"""Import directions hold, and the check can fail."""

import ast
from pathlib import Path

import pytest

from tests.contract.import_rules import ALLOWED, imports_of, violations

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_import_directions(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"{package}/ holds no Python file: the walk would check nothing"
    assert [str(v) for path in files for v in violations(path, ROOT)] == []


def test_sweeps_is_data_only() -> None:
    assert list((ROOT / "sweeps").rglob("*.py")) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("mulosd.decoding.planted", "import ray"),
        ("mulosd.decoding.planted", "from evaluators.types import Metric"),
        ("mulosd.models.planted", "def f():\n    import pyarrow.parquet as pq"),
        ("mulosd.planted", "from pipelines import plan"),
        ("mulosd.planted", "from importlib import import_module\nimport_module('mlflow.tracking')"),
        ("mulosd.planted", "TARGET = 'pipelines.plan.build:build'"),
        ("evaluators.planted", "from mulosd.models import families"),
        ("evaluators.planted", "from mulosd.stage import write"),
        ("evaluators.planted", "import mlflow"),
        ("dashboards.planted", "from evaluators.statistics.intervals import wilson"),
        ("dashboards.planted", "from pipelines.store.results import collect"),
        ("dashboards.planted", "if TYPE_CHECKING:\n    import mlflow"),
        ("pipelines.planted", "from tests.fakes import toy"),
        ("mulosd.decoding.planted", "from ...evaluators import types"),
    ],
)
def test_planted_wrong_import_is_caught(tmp_path: Path, module: str, line: str) -> None:
    path = tmp_path / "planted.py"
    path.write_text(line, encoding="utf-8")
    assert violations(path, tmp_path, as_module=module), f"{line!r} in {module} went unnoticed"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("evaluators.fine", "from mulosd.stage import read"),
        ("evaluators.fine", "from mulosd.scenes.vocabulary import COLOURS"),
        ("mulosd.stage.fine", "import pyarrow as pa"),
        ("mulosd.decoding.fine", "from ..types import Decoded"),
        ("pipelines.fine", "def f():\n    import ray"),
        ("dashboards.fine", "from dashboards.rows import CellRow"),
    ],
)
def test_allowed_import_passes(tmp_path: Path, module: str, line: str) -> None:
    path = tmp_path / "fine.py"
    path.write_text(line, encoding="utf-8")
    assert violations(path, tmp_path, as_module=module) == []


def test_every_import_statement_is_seen() -> None:
    """The walk yields at least one entry for each import statement of a real file."""
    source = (ROOT / "mulosd" / "methods" / "cost.py").read_text(encoding="utf-8")
    statements = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert statements
    assert {n.lineno for n in statements} <= {found.line for found in imports_of(source, "mulosd")}
