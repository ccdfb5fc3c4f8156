"""The command line: `mulosd COMMAND --help` says what each does. A module of commands is imported when one of them
is used, and for `mulosd --help`; heavy imports stay inside the commands.

Exit codes: 0 done, 1 a bug (with its traceback), 2 something the user can fix (said on stderr), 130 interrupted by
Ctrl-C, 143 ended by SIGTERM. `pipelines.cli.entry` sees to the last two from the start of the process to its end.
"""

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from mulosd.errors import UserError
from mulosd.files.home import home
from pipelines.host import signals

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


COMMANDS = {
    "animate": "pipelines.cli.single:animate",
    "bench": "pipelines.cli.sweeps:bench",
    "card": "pipelines.cli.families:card",
    "compare": "pipelines.cli.results:compare",
    "convert": "pipelines.cli.checkpoints:convert",
    "demo": "pipelines.cli.demo:demo",
    "doctor": "pipelines.cli.checkpoints:doctor",
    "export": "pipelines.cli.results:export",
    "fetch": "pipelines.cli.checkpoints:fetch",
    "gallery": "pipelines.cli.results:gallery",
    "generate": "pipelines.cli.single:generate",
    "measure": "pipelines.cli.families:measure",
    "methods": "pipelines.cli.methods:methods",
    "plan": "pipelines.cli.sweeps:plan",
    "regions": "pipelines.cli.results:regions",
    "run": "pipelines.cli.sweeps:run",
    "stage": "pipelines.cli.stage:stage",
    "submit": "pipelines.cli.jobs:submit",
    "sync": "pipelines.cli.jobs:sync",
    "table": "pipelines.cli.results:table",
    "track": "pipelines.cli.jobs:track",
    "train": "pipelines.cli.train:train",
    "ui": "pipelines.cli.jobs:ui",
}


class LazyGroup(click.Group):
    """Commands by name, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, None for a name that is not one."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings=SETTINGS)
@click.version_option(package_name="mulosd")
@click.option("-v", "--verbose", is_flag=True, help="Log what is done to stderr.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Folder of converted families (MULOSD_WEIGHTS, ~/.cache/mulosd)."
)
def cli(verbose: bool, weights: Path | None) -> None:
    """Speculative decoding of autoregressive image generators: decode, score, compare."""
    if weights:  # through the environment, as workers are other processes
        os.environ["MULOSD_WEIGHTS"] = str(weights.absolute())
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; ends the process with the exit codes above."""
    # Read when torch loads its threads: waiting ones must not spin beside a busy core.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("HOME", str(home()))  # libraries end in a traceback where there is none
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without a dash, or a lone surrogate: "?", no traceback
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="mulosd", standalone_mode=False)
    except UserError as error:
        click.echo(f"mulosd: {error}", err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # of any path that was given; whatever else arrives here is a bug
            raise
        click.echo(f"mulosd: {str(error.filename)[:80]}…: {error.strerror}; give a shorter name.", err=True)
        code = 2
    except click.Abort:
        click.echo(signals.INTERRUPTED_TEXT, err=True)
        code = signals.INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
