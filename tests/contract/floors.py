"""The floors of the house (docs/architecture.md): a room may import rooms of lower floors and its own files only.

A room is a folder or a single file below a top-level package. Imports inside functions, under TYPE_CHECKING and in lazy
registry targets count too (`import_rules`), but for REGISTERED: light files name decoders and up-samplers, as an
entry point would.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from tests.contract.import_rules import imports_of, module_name

# Package -> floors from the ground up.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mulosd": (
        ("errors", "types"),
        ("files", "registry", "sampling", "scenes"),
        ("prompts", "stage"),
        ("families",),
        ("methods",),
        ("models",),
        ("convert",),
        ("decoding",),
        ("text", "upsample"),
        ("targets",),
        ("training",),
    ),
    "evaluators": (
        ("types",),
        ("images", "state", "statistics"),
        ("features", "geneval"),
        ("detail", "dpg", "scenes", "speed"),
        ("registry",),
    ),
    "dashboards": (
        ("drawing", "numbers", "rows"),
        ("markdown",),
        ("animation", "card", "gallery", "table"),
        ("entries", "plots", "regions"),
        ("latex",),
        ("render",),
        ("pair",),
    ),
    "pipelines": (
        ("host", "plan"),
        ("store", "work"),
        ("compare", "executors"),
        ("run", "tracking"),
        ("card", "cluster", "latency"),
        ("cli",),
    ),
}

REGISTERED = {"mulosd.methods": ("mulosd.decoding", "mulosd.upsample")}

Graph = Mapping[str, set[str]]


def import_graph(root: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Module -> modules of `packages` that it imports; a package's `__init__` has the name of the package."""
    files = {module_name(path, root): path for name in packages for path in sorted((root / name).rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        graph[module] = _imported(path, package, files) - {module}
    return graph


def upward(graph: Graph) -> list[str]:
    """Imports that do not go down: to a higher floor, or to another room of the same one."""
    floor_of = {
        (top, room): floor for top, floors in FLOORS.items() for floor, rooms in enumerate(floors) for room in rooms
    }
    wrong = []
    for module, imported in sorted(graph.items()):
        for name in sorted(imported):
            own, other = _room(module), _room(name)
            if own[0] != other[0] or own == other or "" in (own[1], other[1]):
                continue
            if floor_of[other] >= floor_of[own]:
                wrong.append(f"{module} -> {name}")
    return wrong


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import one another, directly or not (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def _imported(path: Path, package: str, known: Collection[str]) -> set[str]:
    found = set()
    for each in imports_of(path.read_text(encoding="utf-8"), package):
        name = max((name for name in each.names if name in known), key=len, default="")
        is_decoder = each.is_registered and name.startswith(REGISTERED.get(package, "-"))
        if name and not is_decoder:
            found.add(name)
    return found


def _room(module: str) -> tuple[str, str]:
    top, _, rest = module.partition(".")
    return top, rest.partition(".")[0]
