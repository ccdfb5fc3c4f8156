"""Where `mulosd` begins: signals and streams are in order before anything heavy is imported."""

import sys

from pipelines.host import signals
from pipelines.host.streams import guard_streams


def main() -> None:
    """Run the command line as a process of its own; exit codes as in `pipelines.cli.main`."""
    signals.install()
    stdout = guard_streams()
    code = _run()
    signals.say_stopped()
    if stdout is not None:
        sys.stdout.flush()
    if stdout is not None and stdout.problem and not stdout.is_reader_gone:
        print(f"mulosd: standard output could not be written ({stdout.problem}).", file=sys.stderr)
        code = code or 2
    signals.finish(code)
    sys.exit(code)


def _run() -> int:
    try:
        from pipelines.cli.main import main as run

        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        print(signals.INTERRUPTED_TEXT, file=sys.stderr)
        return signals.INTERRUPTED
    return 0
