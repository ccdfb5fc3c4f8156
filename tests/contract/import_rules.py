"""The import table of the project (docs/architecture.md) and an AST walk that checks files against it.

Imports inside functions and under TYPE_CHECKING count too: a direction is a direction. Constant arguments of
`import_module` and lazy registry targets ("package.module:attribute") are read as imports.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PROJECT = ("mulosd", "evaluators", "dashboards", "pipelines", "tests", "bench")

# Package -> project modules it may import; a name allows everything below it.
ALLOWED = {
    "mulosd": ("mulosd",),
    "evaluators": (
        "evaluators",
        "mulosd.types",
        "mulosd.errors",
        "mulosd.registry",
        "mulosd.files.publish",
        "mulosd.files.reading",
        "mulosd.files.unpickle",
        "mulosd.stage.read",
        "mulosd.scenes.vocabulary",
    ),
    "dashboards": ("dashboards", "mulosd.types", "mulosd.errors", "mulosd.files.pin", "mulosd.files.publish"),
    "pipelines": ("pipelines", "dashboards", "evaluators", "mulosd"),
}

# Third-party package -> project packages that may import it; packages not named here are free.
OWNERS = {
    "ray": ("pipelines",),
    "mlflow": ("pipelines",),
    "pyarrow": ("mulosd.stage", "evaluators", "pipelines"),
    "datasets": ("mulosd.stage", "pipelines"),
    "torchmetrics": ("evaluators",),
    "matplotlib": ("dashboards",),
    "click": ("pipelines",),
    "tqdm": ("pipelines", "mulosd.training"),
}

_LAZY_TARGET = re.compile(r"^([a-z_][\w]*(?:\.\w+)*):[A-Za-z_]\w*$")


class Import(NamedTuple):
    line: int
    names: tuple[str, ...]  # readings of one import; it is allowed when any of them is
    is_registered: bool = False  # a registry target, resolved when it is first used


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.module} must not import {self.name}"


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a file below the repository root."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, package: str) -> Iterator[Import]:
    """Every import of a module that lives in `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, (alias.name,))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                yield Import(node.lineno, (base, f"{base}.{alias.name}"))
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__", "find_spec"}:
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Import(node.lineno, (node.args[0].value,))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _LAZY_TARGET.match(node.value)
            if match and match[1].split(".")[0] in (*PROJECT, *OWNERS):
                yield Import(node.lineno, (match[1],), is_registered=True)


def violations(path: Path, root: Path, *, as_module: str | None = None) -> list[Violation]:
    """What `path` imports against the table; as_module places the file elsewhere (for planted examples)."""
    module = as_module or module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    wrong = []
    for found in imports_of(path.read_text(encoding="utf-8"), package):
        if not any(_is_allowed(module, name) for name in found.names):
            wrong.append(Violation(str(path), found.line, module, found.names[-1]))
    return wrong


def _is_allowed(module: str, name: str) -> bool:
    top = name.split(".")[0]
    if top in PROJECT:
        return any(_is_below(name, allowed) for allowed in ALLOWED[module.split(".")[0]])
    return top not in OWNERS or any(_is_below(module, owner) for owner in OWNERS[top])


def _is_below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent + ".")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    base = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _called(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
