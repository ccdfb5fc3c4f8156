"""The outbox: append-only, each thing said once, whole after a crash, and damage is noticed."""

import json
from pathlib import Path

import pytest

from mulosd.errors import DataError
from pipelines.tracking.outbox import Outbox


def box(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


def test_what_was_said_last_is_not_repeated(tmp_path: Path) -> None:
    outbox = box(tmp_path)
    assert outbox.entries("s") == []
    assert outbox.add("s", {"a": {"x": 1}, "": {"n": 1}}, uri="u") == 2
    assert outbox.add("s", {"a": {"x": 1}, "": {"n": 1}}, uri="u") == 0
    assert outbox.add("s", {"a": {"x": 2}}, uri="u") == 1
    assert outbox.add("s", {"a": {"x": 1}}, uri="u") == 1  # said before, but not last
    assert [(e.cell_key, dict(e.content)) for e in outbox.entries("s")] == [
        ("a", {"x": 1}),
        ("", {"n": 1}),
        ("a", {"x": 2}),
        ("a", {"x": 1}),
    ]
    assert outbox.sweep_keys() == ["s"]


def test_what_is_logged_depends_on_the_tracking_store(tmp_path: Path) -> None:
    outbox = box(tmp_path)
    outbox.add("s", {"a": {"x": 1}, "b": {"x": 1}}, uri="u")
    first, second = outbox.entries("s")
    outbox.acknowledge("s", "one", [(first, "run1")])
    assert outbox.pending("s", "one") == [second]
    assert outbox.pending("s", "two") == [first, second]
    assert outbox.pending("s", None) == [first, second]
    assert outbox.done("s", "one") == {first.id: "run1"}
    assert outbox.sweep_keys() == ["s"]


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_line_cut_short_does_not_count_and_is_said_again(tmp_path: Path, keep: int) -> None:
    outbox = box(tmp_path)
    outbox.add("s", {"a": {"x": 1}}, uri="u")
    path = outbox.folder / "s.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:keep])
    assert len(outbox.entries("s")) == 1
    outbox.add("s", {"a": {"x": 1}, "b": {"x": 1}}, uri="u")
    assert [e.cell_key for e in outbox.entries("s")] == ["a", "b"]
    assert path.read_bytes().startswith(whole)


def test_damage_is_named(tmp_path: Path) -> None:
    outbox = box(tmp_path)
    outbox.add("s", {"a": {"x": 1}, "b": {"x": 2}}, uri="u")
    path = outbox.folder / "s.jsonl"
    lines = path.read_text().splitlines()
    line = json.loads(lines[1])
    line["content"]["x"] = 3
    path.write_text("\n".join([lines[0], json.dumps(line)]) + "\n")
    with pytest.raises(DataError, match=r"s\.jsonl:2 is damaged"):
        outbox.entries("s")
    path.write_text("{not json\n")
    with pytest.raises(DataError, match=r"s\.jsonl:1 is not JSON"):
        outbox.entries("s")
