"""Rows of text as a table: GitHub Markdown for pages, columns of blanks for a terminal. Every table is written here."""

from collections.abc import Iterator, Sequence

_RULES = {"l": ":--", "r": "--:", "-": "---"}


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "") -> str:
    """A GitHub table, without a last line end; bars and line ends in entries are escaped.

    align: a letter a column: l, r, or - for what the reader's style says (the default of every column).
    """
    rules = [_RULES[letter] for letter in align or "-" * len(head)]
    width = {len(line) for line in (head, rules, *rows)}
    if len(width) > 1:
        raise ValueError(f"the lines of one table have {sorted(width)} entries")
    return "\n".join("| " + " | ".join(map(escape, line)) + " |" for line in (head, rules, *rows))


def aligned_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines for a terminal: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        numbers = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *numbers])


def escape(text: str) -> str:
    """Text of one table entry, or of a line below a table; GitHub sets a formula between dollar signs."""
    return " ".join(text.replace("|", "\\|").replace("$", "\\$").splitlines())
