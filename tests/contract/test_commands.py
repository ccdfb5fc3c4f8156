"""Every command and snippet that README and documents show works: parsed always, run where it is cheap, or by --slow.

What no test can run is marked in the page (`tests.contract.commands.NEEDS`).
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from pipelines.cli.main import cli
from pipelines.plan.sweep import load_sweep
from tests.contract.citations import sources
from tests.contract.commands import NEEDS, Command, fenced, marks, mentioned, parse, shown, unknown_words

ROOT = Path(__file__).parents[2]
PAGES = [path for path in sources() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
COMMANDS = [(page, command) for page, text in TEXTS.items() for command in shown(text)]
OURS = [(page, command) for page, command in COMMANDS if command.words[0] == "mulosd"]
CHEAP = ("plan", "table", "stage")  # really run by default, on a small store
RUN_BY_CI = ("make lint", "make test", "make test-all", ".ci/run")
STORE = ROOT / "tests" / "fixtures" / "old_store"


def name(case: tuple[str, Command]) -> str:
    return f"{case[0]}:{case[1].line}"


def words_here(command: Command) -> list[str]:
    """The arguments of a command, with `runs/...` and the placeholders DIR and NEW as names that a test makes."""
    return [{"DIR": "runs/smoke", "NEW": "new"}.get(word, word) for word in command.words[1:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: the sweeps, and a finished store wherever a page names one."""
    (tmp_path / "sweeps").symlink_to(ROOT / "sweeps")
    shutil.copytree(STORE, tmp_path / "runs" / "smoke")
    (tmp_path / "runs" / "demo").symlink_to(tmp_path / "runs" / "smoke")
    (tmp_path / "runs" / "ablations").symlink_to(tmp_path / "runs" / "smoke")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_pages_show_commands() -> None:
    assert len(OURS) > 25
    assert len({page for page, _ in COMMANDS}) > 6


def test_marks_are_known() -> None:
    assert {need for text in TEXTS.values() for need in marks(text)} <= NEEDS.keys()


@pytest.mark.parametrize("case", OURS, ids=name)
def test_the_command_line_takes_it(case: tuple[str, Command], monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse(cli, case[1].words[1:], monkeypatch)
    if "sweep" in found and (ROOT / found["sweep"]).exists():
        load_sweep(ROOT / found["sweep"], list(found["overrides"]))


@pytest.mark.parametrize("case", [case for case in OURS if case[1].words[1] in CHEAP], ids=name)
def test_cheap_ones_run(case: tuple[str, Command], folder: Path) -> None:
    done = CliRunner().invoke(cli, words_here(case[1]), catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_sentences_name_commands_that_exist() -> None:
    found: dict[str, list[str]] = {}
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            if "tests" in path.parts:
                continue
            strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            text = "\n\n".join(value for value in strings if isinstance(value, str))
        for mention in mentioned(text):
            found.setdefault(mention, unknown_words(cli, mention))
    assert len(found) > 40
    assert {mention: bad for mention, bad in found.items() if bad} == {}


def test_sweeps_in_pages_are_sweeps(tmp_path: Path) -> None:
    texts = [text for page in TEXTS.values() for text in fenced(page, "yaml") if "methods" in yaml.safe_load(text)]
    assert len(texts) >= 2
    for text in texts:
        (tmp_path / "shown.yaml").write_text(text, encoding="utf-8")
        load_sweep(tmp_path / "shown.yaml", [])


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if fenced(text, "python")])
def test_python_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in fenced(TEXTS[page], "python"):
        exec(compile(text, page, "exec"), {})
    assert capsys.readouterr().out


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a checkout, with a `mulosd` of this code on the path; what commands write stays in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in ("runs", ".git"):
            (folder / path.name).symlink_to(path)
    program = folder / "bin" / "mulosd"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pipelines.cli "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("page", sorted({page for page, _ in COMMANDS}))
def test_pages_run(page: str, checkout: Path) -> None:
    """All unmarked commands of a page in order, in one folder."""
    environment = os.environ | {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(checkout)}
    if not (checkout / "runs" / "smoke").exists():
        shutil.copytree(STORE, checkout / "runs" / "smoke")
    for command in shown(TEXTS[page]):
        if command.needs or command.text in RUN_BY_CI:
            continue
        line = command.text.replace(" DIR", " runs/smoke").replace(" NEW", f" new-{command.line}")
        line = re.sub("^make ", "make -o .venv/.installed ", line)  # the environment is not this test's to change
        done = subprocess.run(
            ["bash", "-c", line], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


PLANTED = """# A page

    mulosd plan sweeps/smoke.yaml      # says what
    head$ ray start --head \\
        --port=1

    not a command, but a diagram

<!-- needs: gpu, time -->

    A=1 mulosd run sweeps/smoke.yaml --out x

Text.

    mulosd doctor
"""


def test_commands_are_found() -> None:
    assert shown(PLANTED) == [
        Command(3, "mulosd plan sweeps/smoke.yaml", frozenset()),
        Command(5, "ray start --head --port=1", frozenset()),
        Command(11, "A=1 mulosd run sweeps/smoke.yaml --out x", frozenset({"gpu", "time"})),
        Command(15, "mulosd doctor", frozenset()),
    ]
    assert shown(PLANTED)[2].words[:2] == ["mulosd", "run"]


@pytest.mark.parametrize(
    "text",
    ["mulosd plane sweeps/smoke.yaml", "mulosd plan --limmit 3 x", "mulosd run sweeps/smoke.yaml", "mulosd plan"],
)
def test_a_wrong_command_is_noticed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError):
        parse(cli, text.split()[1:], monkeypatch)


def test_nothing_runs_while_parsing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    found = parse(cli, ["run", "sweeps/smoke.yaml", "--out", "nowhere", "--limit", "3"], monkeypatch)
    assert (found["limit"], found["command"]) == (3, "mulosd run")
    assert not (folder / "nowhere").exists()


def test_wrong_mentions_are_noticed() -> None:
    assert unknown_words(cli, "mulosd stage verify|repair DIR --dry-run") == []
    assert unknown_words(cli, "mulosd submit status [ID]") == []
    assert unknown_words(cli, "mulosd --weights DIR COMMAND") == []
    assert unknown_words(cli, "mulosd stage verify|mend DIR --wet-run") == ["verify|mend", "--wet-run"]
    assert unknown_words(cli, "mulosd conpare A B") == ["conpare"]
