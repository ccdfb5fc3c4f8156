"""Every page, heading, file and module that code, tests, sweeps and documents cite is in the repository."""

from pathlib import Path

import pytest

from tests.contract.citations import ROOT, WRITTEN, problems, prose, sources


def test_what_is_cited_is_there() -> None:
    files = sources()
    assert len(files) > 250
    bad = {str(path.relative_to(ROOT)): found for path in files if (found := problems(path, prose(path)))}
    assert bad == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('see docs/mulosd.md "The cycle" and docs/mulosd.md', None),
        ("of docs/nowhere.md 1.2", "no page docs/nowhere.md"),
        ("decoding.md (1.6)", "no page decoding.md"),
        ('docs/mulosd.md, "No such heading"', 'no heading docs/mulosd.md "No such heading"'),
        ("docs/mulosd.md 1.6", "docs/mulosd.md 1.6: cite the heading, not a number"),
        ("docs/mulosd.md b.3", "docs/mulosd.md b.3: cite the heading, not a number"),
        ('The gate (issue "Foundation" 2)', "cites a section or an issue that is elsewhere"),
        ("the rule (architecture 9)", "cites a section or an issue that is elsewhere"),
        ("mulosd/decoding/mulosd.py and sweeps/table1-*.yaml", None),
        ("mulosd/decoding/nowhere.py", "no file mulosd/decoding/nowhere.py"),
        ("sweeps/nowhere-*.yaml", "no file sweeps/nowhere-*.yaml"),
        ("mulosd.decoding.mulosd.decode_mulosd of `mulosd.types.DecodeStats`", None),
        ("mulosd.decoding.nowhere", "no module mulosd.decoding.nowhere"),
        ("mulosd.types.Nothing", "no module mulosd.types.Nothing"),
        ("OUT/table.md and the tag mulosd.sweep_key", None),
    ],
)
def test_a_planted_citation_is_judged(text: str, problem: str | None) -> None:
    assert problems(ROOT / "mulosd" / "planted.py", text) == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](mulosd.md#the-cycle) [b](https://example.org/x.md) [c](img/demo_decode.gif)", None),
        ("[a](nowhere.md)", "no file nowhere.md"),
        ("[a](mulosd.md#nowhere)", "no heading mulosd.md#nowhere"),
        ("as metrics.md says", None),
        ("as models.md says", "no page models.md"),
    ],
)
def test_a_planted_link_is_judged(text: str, problem: str | None) -> None:
    assert problems(ROOT / "docs" / "planted.md", text) == ([problem] if problem else [])


def test_citations_are_found_in_comments_docstrings_and_across_lines(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(
        '"""Module (see\nmodels.md 1)."""\nx = "table.md"  # by parity.md\n# (evaluators.md\n# fact 5)\n'
        'def f():\n    """Inner: decoding.md."""\n    return "strings.md"\n'
    )
    found = problems(source, prose(source))
    assert found == [f"no page {name}.md" for name in ("models", "decoding", "parity", "evaluators")]


def test_pages_that_runs_write_are_written() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources() if path.suffix == ".py")
    assert [name for name in WRITTEN if f'"{name}"' not in code] == []
