"""What must start fast loads nothing heavy: a module is light unless it is listed, and so is a command that only looks.

This stands in place of a test of seconds, which a busy machine would fail.
"""

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "mlflow", "datasets", "pyarrow", "scipy", "matplotlib", "transformers", "torchmetrics")
# Package or module -> what it may load when it is imported; the longest name that fits counts.
MAY_LOAD = {
    "evaluators.dpg.scenes": {"scipy"},
    "evaluators.scenes": {"scipy"},
    "mulosd.convert.part": {"torch"},
    "mulosd.convert.source": {"torch"},
    "mulosd.decoding": {"torch", "scipy"},
    "mulosd.files.unpickle": {"torch"},
    "mulosd.models": {"torch"},
    "mulosd.sampling": {"torch"},
    "mulosd.stage": {"pyarrow"},
    "mulosd.stage.manifest": set(),
    "mulosd.targets": {"torch", "scipy"},
    "mulosd.text": {"torch"},
    "mulosd.training": {"torch"},
    "mulosd.training.stages": set(),
    "mulosd.upsample": {"torch"},
    "pipelines.compare.regions": {"scipy"},
    "pipelines.store.upkeep": {"pyarrow"},
}
# These load whatever a library loads with its networks; nothing light imports them, as the other modules show.
NETWORKS = ("evaluators.features.effnet", "evaluators.features.frechet_statistic")
RUN = """
import json, sys
heavy, steps = json.load(sys.stdin)
found = {}
for name, code in steps.items():
    before = set(sys.modules)
    exec(code, {})
    found[name] = [module for module in heavy if module in sys.modules and module not in before]
print(json.dumps(found))
"""
COMMAND = """
from click.testing import CliRunner
from pipelines.cli.main import cli
done = CliRunner().invoke(cli, {words})
assert done.exit_code == 0, done.output
assert done.output
"""
EVERY_HELP = """
import click
from click.testing import CliRunner
from pipelines.cli.main import cli

def show(group, words):
    assert CliRunner().invoke(cli, [*words, "--help"]).output.startswith("Usage: ")
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            show(group.get_command(context, name), [*words, name])

show(cli, [])
"""
GENERATE = ["generate", "--target", "tiny-mid", "--method", "mulosd", "--prompt", "a circle", "--out", "x.png"]
COMMANDS = {
    "help": EVERY_HELP,
    "plan": COMMAND.format(words=["plan", "smoke"]),
    "plan of a released family": COMMAND.format(words=["plan", "table1-tar-7b-512"]),
    "generate --explain --dry-run": COMMAND.format(words=[*GENERATE, "--explain", "--dry-run"]),
    "card": COMMAND.format(words=["card", "tiny"]),
    "loading prompts": "from mulosd.prompts import load_prompts; assert load_prompts({'name': 'scenes'})",
    "building an evaluator": "from evaluators.registry import build_evaluator; assert build_evaluator('speed')",
    "run --dry-run": COMMAND.format(words=["run", "smoke", "--out", "/tmp/no-such-store", "--dry-run"]),
}


def loaded_by(steps: dict[str, str]) -> dict[str, list[str]]:
    """Heavy modules that each piece of code loads first, run one after the other in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps([HEAVY, steps]), cwd=ROOT, capture_output=True, text=True,
        encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def may_load(module: str) -> list[str]:
    parts = module.split(".")
    names = (".".join(parts[:num]) for num in range(len(parts), 0, -1))
    return sorted(next((MAY_LOAD[name] for name in names if name in MAY_LOAD), set()))


def modules() -> list[str]:
    tops = ("mulosd", "evaluators", "dashboards", "pipelines")
    files = [path.relative_to(ROOT) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]
    names = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [name for name in names if not name.startswith(NETWORKS) and not name.endswith(".__main__")]


GROUPS = {tuple(allowed): list(names) for allowed, names in groupby(sorted(modules(), key=may_load), key=may_load)}


@pytest.mark.parametrize("allowed", GROUPS, ids=lambda allowed: " and ".join(allowed) or "nothing")
def test_modules_load_what_they_may(allowed: tuple[str, ...]) -> None:
    found = loaded_by({name: f"import {name}" for name in GROUPS[allowed]})
    assert {name: heavy for name, heavy in found.items() if not set(heavy) <= set(allowed)} == {}
    assert {module for heavy in found.values() for module in heavy} == set(allowed), "the list allows too much"


def test_commands_that_only_look_load_nothing_heavy() -> None:
    # A dry run asks the evaluators for their settings, and the detector of scenes computes with scipy.
    assert loaded_by(COMMANDS) == {**{name: [] for name in COMMANDS}, "run --dry-run": ["scipy"]}


def test_a_heavy_import_is_noticed() -> None:
    steps = {"light": "import mulosd", "planted": "import pyarrow", "again": "import pyarrow.parquet"}
    assert loaded_by(steps) == {"light": [], "planted": ["pyarrow"], "again": []}


def test_the_list_names_what_exists() -> None:
    files = [ROOT / name.replace(".", "/") for name in (*MAY_LOAD, *NETWORKS)]
    assert [path for path in files if not path.is_dir() and not path.with_suffix(".py").is_file()] == []
    assert may_load("mulosd.stage.read") == ["pyarrow"]
    assert may_load("mulosd.stage.manifest") == may_load("mulosd") == may_load("mulosd.stages") == []
