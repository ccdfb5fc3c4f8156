"""The commands that documents show, and what each needs that a test does not have.

A block of commands is indented or fenced. `<!-- needs: gpu, network -->` before it says why no test runs it; every
other block is run by `test_commands.py`. All of them are parsed by the real command line.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

NEEDS = {
    "gpu": "a CUDA device",
    "network": "a connection to the outside",
    "files": "files of the user: weights, prompts, a sweep",
    "cluster": "a Ray cluster, Slurm or Kubernetes",
    "time": "more than a few minutes",
}
STARTS = {
    *("mulosd", "make", "python", "pip", "ray", "kubectl", "srun", "ssh", "export", "sleep"),
    *(".ci/run", "bash", "git"),
}
_MARK = re.compile(r"<!-- needs: ([\w, ]+) -->")
_PROMPT = re.compile(r"^(?:\w*\$ )?((?:[A-Z_]+=\S+ )*)(.*)$")


class Command(NamedTuple):
    """One shown command: its line in the page, its text without prompt and comment, and what it needs."""

    line: int
    text: str
    needs: frozenset[str]

    @property
    def words(self) -> list[str]:
        """Its words as a shell splits them, without variables set in front."""
        words = shlex.split(self.text)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        return words


def shown(page: str) -> list[Command]:
    """The commands of a page, in order."""
    return [command for start, lines, needs in _blocks(page) for command in _commands(start, lines, needs)]


def fenced(page: str, language: str) -> list[str]:
    """The texts of the blocks fenced as `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def marks(page: str) -> set[str]:
    """Every need that the page names."""
    return {need.strip() for mark in _MARK.findall(page) for need in mark.split(",")}


def parse(group: click.Group, words: Sequence[str], monkeypatch: Any) -> dict[str, Any]:
    """Parameters that the command line makes of `words` (without the program's name); no command body runs."""
    seen: dict[str, Any] = {}
    invoke = click.Command.invoke

    def record(self: click.Command, ctx: click.Context) -> Any:
        if isinstance(self, click.Group):
            return invoke(self, ctx)
        return seen.update(ctx.params, command=ctx.command_path)

    with monkeypatch.context() as patch:
        patch.setattr(click.Command, "invoke", record)
        group.main(args=list(words), prog_name="mulosd", standalone_mode=False)
    return seen


def mentioned(text: str) -> list[str]:
    """Commands named in a sentence, between single backticks."""
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`(mulosd [^`]+)`", text)]


def unknown_words(group: click.Group, mention: str) -> list[str]:
    """Subcommands and options of a mention that the command line does not have; placeholders pass."""
    chosen: list[click.Command] = [group]
    bad = []
    for word in mention.replace("[", " ").replace("]", " ").split()[1:]:
        groups = [one for one in chosen if isinstance(one, click.Group)]
        if word.startswith("--"):
            names = {opt for one in chosen for parameter in one.params for opt in parameter.opts}
            bad += [word] if word.partition("=")[0] not in names | {"--help", "--version"} else []
        elif groups and re.fullmatch(r"[a-z|-]+", word):
            found = [one.get_command(click.Context(one), name) for one in groups for name in word.split("|")]
            known = [command for command in found if command]
            bad += [] if len(known) == len(found) else [word]
            chosen = known or chosen
    return bad


def _blocks(page: str) -> Iterator[tuple[int, list[str], frozenset[str]]]:
    """Indented and shell blocks: the line before the first one, the lines, and what a mark before them says."""
    lines = page.splitlines()
    needs: frozenset[str] = frozenset()
    index = 0
    while index < len(lines):
        line = lines[index]
        if mark := _MARK.fullmatch(line.strip()):
            needs = frozenset(need.strip() for need in mark[1].split(","))
        elif line.startswith("```"):
            stop = next(i for i in range(index + 1, len(lines)) if lines[i].startswith("```"))
            if line.strip("`") in ("", "bash", "sh", "console"):
                yield index + 1, lines[index + 1 : stop], needs
            index, needs = stop, frozenset()
        elif line.startswith("    ") and (index == 0 or not lines[index - 1].strip()):
            stop = next((i for i in range(index, len(lines)) if not lines[i].startswith("    ")), len(lines))
            yield index, [one[4:] for one in lines[index:stop]], needs
            index, needs = stop - 1, frozenset()
        elif line.strip():
            needs = frozenset()
        index += 1


def _commands(start: int, lines: list[str], needs: frozenset[str]) -> Iterator[Command]:
    text = ""
    for number, line in enumerate(lines, start + 1):
        if line.endswith("\\"):
            text += line[:-1]
            continue
        variables, rest = _PROMPT.match(text + line.strip()).groups()  # type: ignore[union-attr]
        text = ""
        if rest.split(" ")[0] in STARTS:
            yield Command(number, variables + _without_comment(rest), needs)


def _without_comment(line: str) -> str:
    return re.split(r"\s+#\s", line, maxsplit=1)[0].rstrip(" &")
