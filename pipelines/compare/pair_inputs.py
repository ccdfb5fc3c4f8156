"""What a user names as one side of `mulosd compare`: a cell, a sweep, or a folder.

mulosd tau=0.2             label in a sweep of the store (`tiny-mid mulosd tau=0.2` where there are several targets)
1f0c                       key prefix of a cell, or key prefix or name of a sweep: all of its cells
runs/demo                  a store: the cells of the sweep that finished last
runs/demo/cells/1f0c...    a cell's folder; runs/demo/sweeps/... a sweep's
runs/demo:mulosd tau=0.2   any of the first two in another store
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.rows import CellRow
from mulosd.errors import ConfigError, DataError, unknown_name
from pipelines.store.layout import Store
from pipelines.store.results import collect, resolve_sweep


@dataclass(frozen=True)
class Side:
    """One cell, read with the scores of `sweep_key`, and what it was made with (`cell.json`)."""

    store: Store
    sweep_key: str
    row: CellRow
    config: Mapping[str, Any]
    record: Mapping[str, Any]

    @property
    def label(self) -> str:
        """`tiny-mid mulosd tau=0.2`."""
        return f"{self.row.target} {self.row.label}"


@dataclass(frozen=True)
class _Listed:
    """A cell as a sweep lists it."""

    sweep_key: str
    cell_key: str
    target: str
    words: frozenset[str]

    @property
    def label(self) -> str:
        return " ".join([self.target, *sorted(self.words)])


def find_sides(text: str, *, store: Path | None, sweep_key: str | None = None) -> list[Side]:
    """The cells that `text` names; one for a cell, all of them for a sweep or a store.

    store: where labels and keys are looked up. sweep_key: look there only. Raises ConfigError for a name that is
    unknown or fits several cells, DataError for a folder without results.
    """
    folder, name = _split(text)
    if folder is None or (name == "" and store is not None and not _has_results(folder)):
        name = text
        if store is None:
            raise ConfigError(f"{text!r} is not a folder; give --store DIR to look it up in, or write DIR:{text}.")
        folder = store
    elif name == "" and (folder / "cell.json").is_file():
        folder, name = folder.absolute().parents[1], folder.name
    elif name == "" and (folder / "sweep.json").is_file():
        return _sides(Store.existing(folder.absolute().parents[1]), folder.name, None)
    opened = Store.existing(folder)
    if name == "":
        return _sides(opened, resolve_sweep(opened, sweep_key), None)
    return _look_up(opened, name, sweep_key)


def matched(a: Sequence[Side], b: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Pairs to compare: one with one, else by equal label. ConfigError when no label is on both sides."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    if len(a) == 1 or len(b) == 1:
        return [(left, right) for left in a for right in b if left.row.cell_key != right.row.cell_key]
    by_label = {side.label: side for side in b}
    pairs = [(side, by_label[side.label]) for side in a if side.label in by_label]
    if not pairs:
        raise ConfigError(
            f"the sides share no configuration ({a[0].label}, ... and {b[0].label}, ...); name one cell of each."
        )
    return pairs


def _split(text: str) -> tuple[Path | None, str]:
    """(folder, name in it): the whole text as a folder, or DIR:NAME, or (None, text)."""
    if Path(text).is_dir():
        return Path(text), ""
    head, colon, tail = text.rpartition(":")
    if colon and tail and Path(head).is_dir():
        return Path(head), tail
    return None, text


def _has_results(folder: Path) -> bool:
    """Whether a folder is a store, a cell or a sweep: another one may happen to be called `mulosd`."""
    return any((folder / name).exists() for name in ("cells", "sweeps", "cell.json", "sweep.json"))


def _look_up(store: Store, name: str, sweep_key: str | None) -> list[Side]:
    """By label in the newest sweep that has it, else by key prefix of a cell, or key prefix or name of a sweep."""
    keys = [resolve_sweep(store, sweep_key)] if sweep_key else store.sweep_keys()[::-1]
    if not keys:
        raise DataError(f"{store.root} holds no finished sweep; run `mulosd run SWEEP.yaml --out {store.root}` first.")
    listed = [cell for key in keys for cell in _listed(store, key)]
    words = frozenset(name.split())
    for key in keys:
        fits = [c for c in listed if c.sweep_key == key and words in (c.words, c.words | {c.target})]
        if len(fits) > 1:
            raise ConfigError(f"{name!r} fits {', '.join(c.label for c in fits)}; name the target too.")
        if fits:
            return _sides(store, key, fits[0].cell_key)
    cells = {cell.cell_key: cell for cell in reversed(listed) if cell.cell_key.startswith(name)}
    named = [key for key in keys if store.read_sweep(key)["name"] == name][:1]  # the newest of that name
    sweeps = named or [key for key in keys if key.startswith(name)]
    if len(cells) + len(sweeps) > 1:
        found = [*(f"{cell.cell_key} ({cell.label})" for cell in cells.values()), *(f"sweep {key}" for key in sweeps)]
        raise ConfigError(f"{name!r} fits {', '.join(found)}; give more of the key.")
    if sweeps:
        return _sides(store, sweeps[0], None)
    if not cells:
        raise unknown_name("cell or sweep", name, dict.fromkeys(cell.label for cell in listed), str(store.root))
    ((cell_key, cell),) = cells.items()
    return _sides(store, cell.sweep_key, cell_key)


def _listed(store: Store, sweep_key: str) -> list[_Listed]:
    return [
        _Listed(
            sweep_key,
            cell["cell_key"],
            cell["target"],
            frozenset([cell["method"], *(f"{name}={value}" for name, value in cell["knobs"].items())]),
        )
        for cell in store.read_sweep(sweep_key)["cells"]
    ]


def _sides(store: Store, sweep_key: str, cell_key: str | None) -> list[Side]:
    rows = collect(store, sweep_key, cells=None if cell_key is None else [cell_key])
    contents = [store.read_cell(row.cell_key) for row in rows]
    return [
        Side(store, sweep_key, row, content["config"], content["record"])
        for row, content in zip(rows, contents, strict=True)
    ]
