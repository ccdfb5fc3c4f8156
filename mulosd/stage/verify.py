"""Check staged cells against their manifests: rows, bytes, digests, unique keys and pixel digests.

The file digest finds any changed byte; the other checks find files that were replaced as a whole, and
say what is wrong with them.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mulosd.errors import DataError
from mulosd.files.publish import read_json, sha256_hex
from mulosd.stage.conditions import condition_problems
from mulosd.stage.manifest import MANIFEST, FileEntry, read_manifest
from mulosd.stage.read import columns_of, image_array, proof_of, read_bytes, read_table, rows_of, versions_of
from mulosd.stage.schema import UNKNOWN_VERSION, pixel_digest, rows_digest


class ForeignChunk(DataError):
    """A chunk file is in the folder of another cell."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file and a sentence. is_record: the file itself may be whole, and only what the
    manifest says of it is missing or differs."""

    path: Path
    text: str
    is_record: bool = False

    def __str__(self) -> str:
        return self.text


def verify_cell(cell_dir: Path) -> list[Problem]:
    """Everything that is wrong with one cell folder; [] for a sound one. Score folders are included."""
    problems = [p for name in ("cell.json",) if (p := _json_problem(cell_dir / name))]
    if not (cell_dir / MANIFEST).exists():
        return [*problems, Problem(cell_dir, f"{cell_dir} has no {MANIFEST}: its run was stopped; run it again.")]
    try:
        files = read_manifest(cell_dir)
    except DataError as error:
        return [*problems, Problem(cell_dir / MANIFEST, str(error))]
    seen: dict[str, Path] = {}
    for name, entry in sorted(files.items()):
        problems += _chunk_problems(cell_dir / "images" / name, entry, seen)
    for path in sorted((cell_dir / "images").glob("*.parquet")):
        if path.name not in files:
            text = f"{path} is not in the manifest: its run was stopped; run it again."
            problems.append(Problem(path, text, is_record=True))
    for folder in sorted(p for p in (cell_dir / "scores").glob("*") if p.is_dir()):
        problems += _score_problems(folder)
    return problems


def verify_store(root: Path) -> list[Problem]:
    """Problems of all cells, conditions and records of a store (or of one cell folder); DataError where neither is."""
    if (root / "cell.json").exists() or (root / MANIFEST).exists():
        return verify_cell(root)
    cells = sorted(path for path in (root / "cells").glob("*") if path.is_dir())
    if not cells:
        raise DataError(f"{root} holds no cells to verify; give the --out folder of a run or one cell folder.")
    conditions = [found for folder in sorted(root.glob("conditions/*")) for found in condition_problems(folder).items()]
    return [
        *(problem for cell in cells for problem in verify_cell(cell)),
        *(Problem(path, text) for path, text in conditions),
        *_record_problems(root),
    ]


def mixed_versions(root: Path) -> list[str]:
    """A line for each cell of a store, or for one cell folder, whose images were made by more than one version of the
    code; chunks that cannot be read are left out."""
    cells = [root] if (root / "cell.json").exists() else sorted(path for path in (root / "cells").glob("*"))
    lines = []
    for cell in cells:
        chunks: dict[tuple[str, ...], list[str]] = {}
        for path in sorted((cell / "images").glob("*.parquet")):
            with suppress(DataError):
                chunks.setdefault(versions_of(path) or (UNKNOWN_VERSION,), []).append(path.stem)
        if len({version for versions in chunks for version in versions}) > 1:
            parts = (f"{' and '.join(versions)} ({', '.join(names)})" for versions, names in chunks.items())
            lines.append(f"{cell}: mixed, its images were made by several versions of the code: {'; '.join(parts)}")
    return lines


def check_entry(path: Path, entry: FileEntry) -> bytes:
    """The content of a chunk when size and digest match its entry; DataError otherwise."""
    data = read_bytes(path)
    check_content(data, path, entry)
    return data


def check_content(data: bytes, path: Path, entry: FileEntry) -> None:
    """DataError when the content of a chunk does not match its entry."""
    if len(data) != entry.bytes or sha256_hex(data) != entry.sha256:
        raise DataError(
            f"{path} does not match its manifest ({len(data)} bytes, {entry.bytes} expected, or another digest); "
            "delete the file and run the sweep again."
        )


def check_proof(data: bytes, path: Path, cell_key: str) -> None:
    """DataError unless a chunk's content proves by itself that it is whole and belongs to the cell."""
    rows = rows_of(data, path)
    proof = proof_of(data)
    if proof["mulosd.cell"] != cell_key:
        raise ForeignChunk(
            f"{path} is a chunk of cell {proof['mulosd.cell']!r}, not of {cell_key!r}; move it back or delete it."
        )
    if proof["mulosd.rows_sha256"] != rows_digest(rows, columns_of(data)):
        raise DataError(f"{path} does not match its own digest; delete the file and run the sweep again.")


def _chunk_problems(path: Path, entry: FileEntry, seen: dict[str, Path]) -> list[Problem]:
    try:
        data = check_entry(path, entry)
    except DataError as error:
        return [Problem(path, str(error), is_record=True)]
    try:
        rows = rows_of(data, path)
    except DataError as error:
        return [Problem(path, str(error))]
    found = []
    key = path.parent.parent.name
    if proof_of(data)["mulosd.cell"] not in ("", key):
        found.append(Problem(path, f"{path} is a chunk of cell {proof_of(data)['mulosd.cell']}."))
    if len(rows) != entry.rows:
        found.append(Problem(path, f"{path} holds {len(rows)} rows, its manifest says {entry.rows}."))
    if sum(row["error"] is not None for row in rows) != entry.failed:
        found.append(Problem(path, f"{path} holds another number of failed rows than its manifest says."))
    for row in rows:
        if row["sample_id"] in seen:
            found.append(Problem(path, f"{path} repeats sample {row['sample_id']} of {seen[row['sample_id']]}."))
        seen[row["sample_id"]] = path
        picture = image_array(row)
        if (picture is None) != (row["error"] is not None):
            found.append(Problem(path, f"{path}: sample {row['sample_id']} needs either an image or an error text."))
        elif picture is not None and pixel_digest(picture) != row["pixel_sha256"]:
            found.append(Problem(path, f"{path}: the pixels of {row['sample_id']} do not match their digest."))
    return found


def _score_problems(folder: Path) -> list[Problem]:
    found = [p for name in (MANIFEST, "metrics.json") if (p := _json_problem(folder / name))]
    if found:
        return found
    for name, entry in sorted(read_json(folder / MANIFEST)["files"].items()):
        path = folder / name
        try:
            intact = sha256_hex(read_bytes(path)) == entry["sha256"]
        except DataError as error:
            found.append(Problem(path, str(error)))
            continue
        if not intact:
            found.append(Problem(path, f"{path} does not match its manifest; delete the file and run again."))
    return [*found, *_sample_problems(folder)]


def _sample_problems(folder: Path) -> list[Problem]:
    """Of the files of scores per sample that metrics.json names."""
    found = []
    for result in read_json(folder / "metrics.json").get("results", {}).values():
        if "samples" in result:
            path = folder / result["samples"]["file"]
            try:
                if sha256_hex(read_bytes(path)) != result["samples"]["sha256"]:
                    found.append(Problem(path, f"{path} does not match metrics.json; delete the file and run again."))
            except DataError as error:
                found.append(Problem(path, str(error)))
    return found


def _record_problems(root: Path) -> list[Problem]:
    """Problems of the records of sweeps and bench runs."""
    paths = [*sorted(root.glob("sweeps/*/sweep.json")), *sorted(root.glob("bench/*/bench.json"))]
    found = {path: _json_problem(path) for path in paths}
    problems = [problem for problem in found.values() if problem]
    for path in (path for path, problem in found.items() if path.name == "bench.json" and not problem):
        rows = path.with_name("rows.parquet")
        try:
            # Older bench runs have no digest; rely on page checksums.
            is_same = sha256_hex(read_bytes(rows)) == read_json(path).get("rows_sha256") or (
                "rows_sha256" not in read_json(path) and bool(read_table(rows))
            )
        except DataError as error:
            problems.append(Problem(rows, str(error)))
            continue
        if not is_same:
            problems.append(Problem(rows, f"{rows} does not match its bench.json; measure again with --force."))
    return problems


def _json_problem(path: Path) -> Problem | None:
    try:
        read_json(path)
    except DataError as error:
        return Problem(path, str(error))
    return None
