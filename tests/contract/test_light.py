"""What must start fast loads nothing heavy, and the check can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "mlflow", "datasets", "pyarrow")
REPORT = f"import sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"


def loaded_by(code: str) -> list[str]:
    """Heavy modules in sys.modules after running `code` in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{REPORT}"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


HELP = """
from pipelines.cli.main import cli
try:
    cli(["--help"])
except SystemExit as stop:
    assert stop.code == 0, stop.code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import mulosd, mulosd.types, mulosd.methods, mulosd.errors",
        "import pipelines.plan.build, pipelines.plan.sweep",
        "import dashboards.table, dashboards.render",
        "import evaluators.types",
        HELP,
    ],
    ids=["mulosd", "plan", "table", "evaluators", "help"],
)
def test_loads_nothing_heavy(code: str) -> None:
    assert loaded_by(code) == []


def test_decoding_loads_no_pipeline_package() -> None:
    assert set(loaded_by("import mulosd.decoding")) <= {"torch"}


def test_a_heavy_import_is_noticed() -> None:
    assert loaded_by("import pyarrow") == ["pyarrow"]
