"""What code, tests, sweeps and documents point to: pages, headings, files and modules; and which of it is not there.

How to cite: `docs/mulosd.md "K/V after resampling"` in code, a link with an anchor in a page. Sections are named by
their heading, never by a number.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("mulosd", "pipelines", "evaluators", "dashboards", "bench", "tests", "sweeps", "docs")
# Pages that a run writes; a mention of one is not a citation.
WRITTEN = ("table.md", "compare.md", "gpu.md")

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
_PAGE = re.compile(
    r"(?<![\w/.*<>-])((?:[\w.-]+/)*[\w-]+\.md)\b(?:,?\s*\"([^\"]+)\"|,?\s+(?:§\s*)?([a-z]?\.?\d[\d.]*\b))?"
)
_FILE = re.compile(rf"(?<![\w/.<>-])((?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*])")
_MODULE = re.compile(r"(?<![\w/.<>-])((?:mulosd|pipelines|evaluators|dashboards)(?:\.\w+)+)")
_ELSEWHERE = re.compile(r"\bissue\s+[\"“]|\barchitecture \d|§")


def sources() -> list[Path]:
    """Every Python file, page and sweep of the repository."""
    nested = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(path for path in [*nested, *ROOT.glob("*.md")] if path.suffix in (".py", ".md", ".yaml"))


def prose(path: Path) -> str:
    """Where a file cites: all of a page; of code the comments, the docstrings and the strings that name a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return "\n\n".join(_python_prose(text, strings="tests" not in path.parts))
    if path.suffix == ".yaml":
        return "\n".join(line.lstrip(" #") for line in text.splitlines() if line.lstrip().startswith("#"))
    return text


def problems(path: Path, text: str) -> list[str]:
    """What `text` of the file `path` cites and the repository does not have, one sentence each."""
    found = list(_bad_links(path, text)) if path.suffix == ".md" else []
    found += _bad_pages(path, _LINK.sub("]", text) if path.suffix == ".md" else text)
    if path.name != "CHANGELOG.md":  # of its own time: files may have moved since
        files = [name for name in _FILE.findall(text) if not name.endswith(".md")]
        found += [f"no file {name}" for name in files if not any(ROOT.glob(name))]
        found += [f"no module {name}" for name in _MODULE.findall(text) if not _module_exists(name)]
    if _ELSEWHERE.search(text):
        found.append("cites a section or an issue that is elsewhere")
    return found


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of a page's headings as GitHub makes them."""
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings(page))


@cache
def headings(page: Path) -> frozenset[str]:
    """Titles of a page."""
    return frozenset(re.findall(r"^#{1,6} +(.*?) *$", page.read_text(encoding="utf-8"), re.M))


def _bad_links(path: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(text):
        name, _, anchor = target.partition("#")
        page = (path.parent / name).resolve() if name else path
        if not page.exists():
            yield f"no file {target}"
        elif anchor and anchor not in anchors(page):
            yield f"no heading {target}"


def _bad_pages(path: Path, text: str) -> Iterator[str]:
    for name, heading, number in _PAGE.findall(" ".join(text.split())):
        if name.rpartition("/")[2] in WRITTEN:
            continue
        near = [path.parent / name] if path.suffix == ".md" else []
        page = next((one for one in [ROOT / name, *near] if one.is_file()), None)
        if page is None:
            yield f"no page {name}"
        elif heading and heading not in headings(page):
            yield f'no heading {name} "{heading}"'
        elif number:
            yield f"{name} {number}: cite the heading, not a number"


def _module_exists(name: str) -> bool:
    """Whether a dotted name leads to a module or to a name at the top of one; a package's tag or group passes."""
    parts = name.split(".")
    here = ROOT / parts[0]
    for depth, part in enumerate(parts[1:], 1):
        if (here / part).is_dir():
            here /= part
        elif (here / f"{part}.py").is_file():
            rest = parts[depth + 1 :]
            return not rest or rest[0] in _names(here / f"{part}.py")
        else:
            return depth == 1 or not (here / "__init__.py").exists() or part in _names(here / "__init__.py")
    return True


@cache
def _names(module: Path) -> frozenset[str]:
    """Names bound at the top of a module."""
    names: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return frozenset(names)


def _python_prose(text: str, *, strings: bool) -> Iterator[str]:
    """Docstrings, strings that name a page, then runs of comment lines: a citation may go on in the next line."""
    for node in ast.walk(ast.parse(text)):
        if strings and isinstance(node, ast.Constant) and isinstance(node.value, str) and "docs/" in node.value:
            yield node.value
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    last, run = -1, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment = token.string.lstrip("# ")
            run = f"{run}\n{comment}" if token.start[0] == last + 1 else f"{run}\n\n{comment}"
            last = token.start[0]
    yield run
