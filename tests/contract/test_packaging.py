"""What a wheel holds: the packages listed by hand, the weights and cards, the sweeps, and nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOPS = ("mulosd", "evaluators", "dashboards", "pipelines")


def packages_on_disk() -> set[str]:
    """Every folder below the top packages that holds Python files."""
    folders = {path.parent for top in TOPS for path in (ROOT / top).rglob("*.py")}
    return {".".join(folder.relative_to(ROOT).parts) for folder in folders}


def test_listed_packages_are_those_on_disk() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert len(set(listed)) == len(listed)
    assert set(listed) == packages_on_disk() | {"sweeps"}


def test_every_package_is_marked() -> None:
    unmarked = [name for name in packages_on_disk() if not (ROOT / name.replace(".", "/") / "__init__.py").is_file()]
    assert unmarked == []


def test_dependencies_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = [name for group in PROJECT["project"]["optional-dependencies"].values() for name in group]
    wanted = {_name(text) for text in [*PROJECT["project"]["dependencies"], *extras]}
    assert wanted <= pinned, f"without a tested version: {sorted(wanted - pinned)}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from a copy of the tracked and untracked sources."""
    copy = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout: the wheel's sources cannot be told from build outputs")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / "README.md").touch()
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        ".",
    ]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(out.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_wheel_holds_sweeps_assets_and_licence(wheel: set[str]) -> None:
    sweeps = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sweeps").rglob("*.yaml")}
    assets = {p.relative_to(ROOT).as_posix() for p in (ROOT / "mulosd" / "assets").rglob("*") if p.is_file()}
    assert sweeps | assets <= wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert "pipelines/cli/main.py" in wheel


def test_wheel_holds_nothing_else(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops <= {*TOPS, "sweeps"}


def _name(requirement: str) -> str:
    for mark in "=<>~![; ":
        requirement = requirement.split(mark)[0]
    return requirement.lower().replace("_", "-")
