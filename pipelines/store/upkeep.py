"""Verify's helpers on a whole store: repair, prune and export, cell by cell under the cells' locks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from mulosd.files.publish import read_json
from mulosd.methods import METHODS, configure
from mulosd.stage.manifest import MANIFEST, read_manifest
from mulosd.stage.prune import STALE_S, TEMP_FILES, Removable, leftovers, removable, temp_files, unused_conditions
from mulosd.stage.repair import QUARANTINE, Action, repair_cell, repair_conditions
from mulosd.stage.verify import Problem
from pipelines.store.layout import CONDITIONS, LOCK, Store
from pipelines.store.lease import Locked, hold
from pipelines.store.scores import METRICS


@dataclass(frozen=True)
class Skipped:
    """A cell that another run works on."""

    text: str

    def __str__(self) -> str:
        return self.text


def repair_store(store: Store, *, dry_run: bool = False) -> Iterator[Action | Skipped]:
    """Repair every cell, condition and record of the store; cells that another run works on are skipped."""
    for key in cell_keys(store):
        try:
            with store.lock_cell(key, wait=False):
                yield from repair_cell(store.cell_dir(key), dry_run=dry_run)
        except Locked as error:
            yield Skipped(str(error))
    for folder in condition_folders(store):
        try:
            with hold(folder / LOCK, wait=False):
                yield from repair_conditions(folder, dry_run=dry_run)
        except Locked as error:
            yield Skipped(str(error))
    for path in damaged_records(store):
        if not dry_run:
            folder = store.root / QUARANTINE
            folder.mkdir(exist_ok=True)
            path.rename(folder / f"{path.parent.name}_{path.name}")
        yield Action(path, f"moved to {QUARANTINE}/; run its sweep or bench again")


def refused_cells(folder: Path) -> list[Problem]:
    """Cells of a store (or the one cell that `folder` is) with settings that this program no longer accepts.

    They can be read and compared; no run continues them.
    """
    folders = [folder] if (folder / "cell.json").exists() else sorted((folder / "cells").glob("*"))
    return [problem for cell in folders if (problem := _refusal(cell))]


def damaged_records(store: Store) -> list[Path]:
    """Records of sweeps and bench runs that cannot be read."""
    paths = [*store.root.glob("sweeps/*/sweep.json"), *store.root.glob("bench/*/bench.json")]
    return [path for path in sorted(paths) if not _is_intact(path)]


def prune_store(store: Store, *, unused: bool = False, dry_run: bool = False) -> Iterator[Removable | Skipped]:
    """Remove temp files and quarantines. unused: also cells and scores that no finished sweep of the store names, and
    conditions that no cell of such a sweep was decoded from.

    Cells that another run works on are skipped; as it may need any condition, these stay while there is one.
    """
    named, scores = _named(store) if unused else (set(), set())
    used: dict[str, set[str]] = {}  # encoder identity -> keys of the conditions that the named cells were decoded from
    is_busy = False
    for key in cell_keys(store):
        folder = store.cell_dir(key)
        try:
            with store.lock_cell(key, wait=False):
                if unused and key not in named:
                    yield from _removed([removable(folder, "no finished sweep names this cell")], dry_run)
                    continue
                found = list(leftovers(folder))
                if unused:
                    found += [
                        removable(path, "no finished sweep names this score")
                        # A folder without metrics is not finished, or holds the states of other scores.
                        for path in sorted(file.parent for file in (folder / "scores").glob(f"*/{METRICS}"))
                        if (key, path.name) not in scores
                    ]
                    if identity := store.read_cell(key)["record"].get(CONDITIONS):
                        used.setdefault(identity, set()).update(_condition_keys(folder))
                yield from _removed(found, dry_run)
        except Locked as error:
            is_busy = True
            yield Skipped(str(error))
    if unused and not is_busy:
        yield from _prune_conditions(store, used, dry_run)
    inside = ("cells", CONDITIONS, QUARANTINE)
    others = [path for path in sorted(store.root.glob("*")) if path.is_dir() and path.name not in inside]
    found = [item for folder in [*others, *condition_folders(store)] for item in leftovers(folder, stale_s=STALE_S)]
    found += temp_files(store.root.glob(TEMP_FILES), stale_s=STALE_S)
    if (store.root / QUARANTINE).is_dir():
        found.append(removable(store.root / QUARANTINE, "damaged records that repair moved away"))
    yield from _removed(found, dry_run)


def export_cells(store: Store, out: Path, cells: Sequence[str] = (), *, dry_run: bool = False) -> tuple[int, int]:
    """Write the cells (all finished ones without `cells`) for `datasets.load_from_disk`; (rows, bytes of their chunks).

    dry_run: check everything that the export checks before it writes, and write nothing.
    """
    from mulosd.stage.export import check_export, export_dataset

    keys = list(cells) or [key for key in cell_keys(store) if (store.cell_dir(key) / MANIFEST).exists()]
    if missing := [key for key in keys if not store.cell_dir(key).is_dir()]:
        raise ConfigError(f"{store.root} holds no cell {missing[0]}; `mulosd plan` lists the keys of a sweep.")
    folders = [store.cell_dir(key) for key in keys]
    if dry_run:
        check_export(folders, out)
    else:
        export_dataset(folders, out)
    entries = [entry for folder in folders for entry in read_manifest(folder).values()]
    return sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries)


def cell_keys(store: Store) -> list[str]:
    """Keys of the cells of a store."""
    return sorted(path.name for path in (store.root / "cells").glob("*") if path.is_dir())


def condition_folders(store: Store) -> list[Path]:
    """The folders of staged conditions, one per encoder."""
    return sorted(path for path in (store.root / CONDITIONS).glob("*") if path.is_dir())


def _refusal(cell_dir: Path) -> Problem | None:
    path = cell_dir / "cell.json"
    if not _is_intact(path):  # said by the check of its files
        return None
    config = read_json(path)["config"]
    try:
        if config.get("method") in METHODS:
            configure(config["method"], config["knobs"])
    except ConfigError as error:
        return Problem(path, f"{path} has a setting that no run continues: {error} Keep it to read, or delete it.")
    return None


def _named(store: Store) -> tuple[set[str], set[tuple[str, str]]]:
    """Cells, and (cell, score folder), that the finished sweeps name."""
    if damaged := [path for path in damaged_records(store) if path.name == "sweep.json"]:
        raise DataError(f"{damaged[0]} is damaged, so unused data cannot be determined; repair or delete it first.")
    cells, scores = set(), set()
    for key in store.sweep_keys():
        record = store.read_sweep(key)
        cells |= {cell["cell_key"] for cell in record["cells"]}
        scores |= {(cell, folder) for cell, found in record["scores"].items() for folder, _ in found.values()}
    return cells, scores


def _condition_keys(cell_dir: Path) -> Iterator[str]:
    """Keys of the conditions of a cell's images, whether or not its encoder samples."""
    from mulosd.stage.conditions import condition_key
    from mulosd.stage.read import iter_cell

    for rows in iter_cell(cell_dir, columns=("prompt", "seed")):
        for row in rows:
            yield condition_key(row["prompt"], row["seed"])
            yield condition_key(row["prompt"], None)


def _prune_conditions(store: Store, used: Mapping[str, set[str]], dry_run: bool) -> Iterator[Removable | Skipped]:
    for folder in condition_folders(store):
        try:
            with hold(folder / LOCK, wait=False):
                found = unused_conditions(folder, used.get(folder.name, set()), dry_run=dry_run)
                yield from _removed(found, dry_run)
        except Locked as error:
            yield Skipped(str(error))


def _removed(found: Sequence[Removable], dry_run: bool) -> Iterator[Removable]:
    for item in found:
        if not dry_run:
            try:
                item.remove()
            except OSError as error:
                raise EnvironmentProblem(f"{item.path} cannot be removed ({error.strerror or error}).") from error
        yield item


def _is_intact(path: Path) -> bool:
    try:
        read_json(path)
    except DataError:
        return False
    return True
