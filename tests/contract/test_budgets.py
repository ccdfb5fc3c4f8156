"""Files and functions stay small enough to read; exceptions are listed with a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
EXCEPTIONS: dict[str, str] = {}  # "path" or "path:function" -> reason


def too_long(source: str, name: str) -> Iterator[str]:
    """Names of what is over budget in one file."""
    if len(source.splitlines()) > MAX_FILE_LINES:
        yield name
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES:
                yield f"{name}:{node.name}"


@pytest.mark.parametrize("package", ["mulosd", "evaluators", "dashboards", "pipelines", "tests", "bench"])
def test_budgets(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    over = [n for f in files for n in too_long(f.read_text(encoding="utf-8"), str(f.relative_to(ROOT)))]
    assert [n for n in over if n not in EXCEPTIONS] == []
    assert all(reason.strip() for reason in EXCEPTIONS.values())


def test_the_budget_check_can_fail() -> None:
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    assert list(too_long(f"def f():\n{body}\n", "a.py")) == ["a.py:f"]
    assert list(too_long("x = 1\n" * (MAX_FILE_LINES + 1), "b.py")) == ["b.py"]
