"""The command line as a user meets it: exit codes, one sentence for what can be fixed, nothing half-written."""

import io
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mulosd.errors import ConfigError
from mulosd.training.stages import STAGES
from pipelines.cli import sweeps
from pipelines.cli.main import cli, main
from pipelines.cli.single import parse_knobs

ROOT = Path(__file__).parents[4]
COMMANDS = ["animate", "bench", "card", "compare", "convert", "demo", "doctor", "export", "fetch", "gallery"]
COMMANDS += ["generate", "measure", "methods", "plan", "regions", "run", "stage", "submit", "sync", "table", "track"]
COMMANDS += ["train", "ui"]


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def run_main(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args)
    return int(stop.value.code or 0)


def test_the_commands_are_these() -> None:
    """Their help is shown by tests/contract/test_light.py."""
    assert cli.list_commands(click.Context(cli)) == COMMANDS
    assert [command_of(name).name for name in COMMANDS] == COMMANDS
    assert cli.get_command(click.Context(cli), "main") is None


def test_a_command_loads_only_its_own_module() -> None:
    code = (
        "import sys; from pipelines.cli.main import main\n"
        "try: main(['stage', 'verify', '--help'])\n"
        "finally: print(sorted(m for m in sys.modules if m.startswith('pipelines.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['pipelines.cli.main', 'pipelines.cli.stage']"


def test_every_stage_of_the_code_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr("mulosd.training.tiny.main", lambda out, stage, minutes: trained.append(stage))
    wanted = ["vq", *STAGES, "all"]
    for stage in wanted:
        assert run_main("train", "tiny", "--stage", stage, "--out", str(tmp_path)) == 0
    assert trained == wanted
    assert "multi" in trained


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", {"--target", "--method", "--prompt", "--seed", "--out", "--set"}),
        ("plan", {"--set"}),
        ("run", {"--out", "--executor", "--limit", "--set", "--dry-run"}),
        ("table", {"--format"}),
    ],
)
def test_fixed_forms(command: str, options: set[str]) -> None:
    """Scripts rely on these."""
    assert options <= {opt for param in command_of(command).params for opt in param.opts}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["plan", "no/such.yaml"], "no such file"),
        (["plan", "smokee"], "unknown sweep"),
        (["table", "/no/such/store"], "not a store"),
        (["stage", "verify", "/no/such/store"], "no cells"),
        (["ui", "/no/such/store"], "does not exist"),
        (["gallery", "/no/such/store", "--out", "x.png"], "not a store"),
        (["generate", "--target", "t", "--method", "ar", "--prompt", "p", "--out", "x.jpg"], ".png"),
        (["generate", "--target", "t", "--method", "arr", "--prompt", "p", "--out", "x.png"], "Did you mean 'ar'"),
        (["generate", "--target", "t", "--method", "mulosd", "--prompt", "p", "--out", "x.png", "--set", "tau=.nan"],
         "not finite"),
        (["generate", "--target", "t", "--method", "ar", "--prompt", "p", "--out", "/proc/x.png"], "cannot be written"),
    ],
)  # fmt: skip
def test_what_a_user_can_fix_is_one_sentence(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(*args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_lacks_a_character_shows_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", stdout)
    assert run_main("card", "tiny") == 0
    stdout.flush()
    assert "?" in stdout.buffer.getvalue().decode("latin-1")  # type: ignore[attr-defined]


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("run", "smoke") == 2
    assert "--out" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sweeps, "load", broken)
    with pytest.raises(ZeroDivisionError):
        main(["plan", "smoke"])


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "load", stopped)
    assert run_main("plan", "smoke") == 130
    assert "continues" in capsys.readouterr().err


def test_knobs_are_yaml_and_given_once() -> None:
    assert parse_knobs(["tau=0.2", "rows_per_cycle=all", "radius=2"]) == {
        "tau": 0.2,
        "rows_per_cycle": "all",
        "radius": 2,
    }
    with pytest.raises(ConfigError, match="twice"):
        parse_knobs(["tau=0.2", "tau=0.3"])
