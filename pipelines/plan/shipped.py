"""Files that travel with the project: sweep files by name, and the committed tables of measured runs."""

from pathlib import Path

from mulosd.errors import ConfigError, unknown_name
from mulosd.files.reading import is_file

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = ROOT / "sweeps"
RESULTS = ROOT / "docs" / "results"


def shipped_sweeps() -> dict[str, Path]:
    """Name ("smoke", "ablations/tau") -> file."""
    return {path.relative_to(SWEEPS).with_suffix("").as_posix(): path for path in sorted(SWEEPS.rglob("*.yaml"))}


def find_sweep(name: str) -> Path:
    """The sweep file `name`: a path, or the name of a shipped sweep; ConfigError with what is allowed otherwise."""
    path = Path(name)
    if is_file(path):
        return path
    known = shipped_sweeps()
    # `sweeps/smoke.yaml` also works away from the repository root, where there is no such file.
    short = name.removeprefix("sweeps/").removesuffix(".yaml")
    if short in known:
        return known[short]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        names = ", ".join(known)
        raise ConfigError(f"{name}: there is no such file; give the path of a sweep file or a shipped name ({names}).")
    raise unknown_name("sweep", name, known)


def committed_tables() -> list[Path]:
    """Pages of larger measured runs, each a title and its main table first, in a checkout; [] in an installed wheel."""
    return sorted(RESULTS.glob("*.md"))
