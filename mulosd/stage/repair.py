"""Move what is damaged in a cell out of the way, so that the next run makes it again. Nothing is deleted or guessed.

A damaged file goes to `quarantine/` inside its cell and leaves its manifest. An intact chunk that is not recorded, as a
stopped run leaves it, stays where it is: the next run checks it against its plan and records it. Hold the cell's lock.
"""

from dataclasses import dataclass
from pathlib import Path

from mulosd.errors import DataError
from mulosd.files.publish import publish_json, read_json
from mulosd.stage.conditions import condition_entries, condition_problems
from mulosd.stage.manifest import MANIFEST, read_manifest, write_manifest
from mulosd.stage.read import read_bytes
from mulosd.stage.verify import Problem, check_proof, verify_cell

QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Action:
    """What is done about one file."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def repair_cell(cell_dir: Path, *, dry_run: bool = False) -> list[Action]:
    """Repair one cell folder; [] for a sound one. dry_run: say what would be done and change nothing.

    `verify_cell` finds nothing damaged afterwards; what it still reports is missing, and the next run makes it.
    """
    problems = {problem.path: problem for problem in verify_cell(cell_dir)}
    return [_repair(cell_dir, problem, dry_run) for problem in problems.values()]


def repair_conditions(folder: Path, *, dry_run: bool = False) -> list[Action]:
    """Repair the folder of one encoder's conditions; what is moved away is encoded again. Hold the folder's lock."""
    damaged = [path for path in condition_problems(folder) if path.exists()]
    if not dry_run:
        for path in damaged:
            _move_away(folder, path)
        if (folder / MANIFEST).exists():
            write_manifest(folder, condition_entries(folder))
    return [Action(path, f"moved to {QUARANTINE}/; the next run encodes its prompts again") for path in damaged]


def _repair(cell_dir: Path, problem: Problem, dry_run: bool) -> Action:
    path = problem.path
    if path == cell_dir or not path.exists():
        text = "missing; the next run makes it"
    elif path.parent == cell_dir / "images" and _is_left_by_a_stopped_run(path, problem):
        text = "published by a stopped run and intact; the next run records it"
    else:
        text = f"moved to {QUARANTINE}/; the next run makes it again"
        if not dry_run:
            _move_away(cell_dir, path)
    if not dry_run:
        _forget(path)
    return Action(path, text)


def _is_left_by_a_stopped_run(path: Path, problem: Problem) -> bool:
    """Whether the chunk is whole and this cell's, and only its record is missing or older."""
    if not problem.is_record:
        return False
    try:
        check_proof(read_bytes(path), path, path.parent.parent.name)
    except DataError:
        return False
    return True


def _move_away(cell_dir: Path, path: Path) -> None:
    folder = cell_dir / QUARANTINE
    folder.mkdir(exist_ok=True)
    name = "_".join(path.relative_to(cell_dir).parts)
    number = sum(1 for other in folder.iterdir() if other.name.startswith(name))
    path.rename(folder / f"{name}.{number}")


def _forget(path: Path) -> None:
    """Take a file out of the manifest that names it."""
    if path.parent.name == "images":
        cell_dir = path.parent.parent
        entries = read_manifest(cell_dir) if _is_readable(cell_dir / MANIFEST) else {}
        if entries.pop(path.name, None) is not None:
            write_manifest(cell_dir, entries)
    elif _is_readable(path.parent / MANIFEST) and path.parent.parent.name == "scores":
        content = read_json(path.parent / MANIFEST)
        if content["files"].pop(path.name, None) is not None:
            publish_json(path.parent / MANIFEST, content)


def _is_readable(path: Path) -> bool:
    try:
        read_json(path)
    except DataError:
        return False
    return True
