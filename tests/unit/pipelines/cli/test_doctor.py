"""Weights against their cards, and the facts a run records."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.cli.doctor import ASSETS, examine, weight_findings
from pipelines.cli.main import main
from pipelines.host.provenance import git_state, versions


def write_card(folder: Path, weights: bytes, digest: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vq.safetensors").write_bytes(weights)
    (folder / "card.json").write_text(json.dumps({"parts": {"vq": {"file": "vq.safetensors", "sha256": digest}}}))


def problems(assets: Path) -> list[str]:
    return [finding.text for finding in weight_findings(assets) if finding.is_problem]


def test_whole_weights_pass(tmp_path: Path) -> None:
    write_card(tmp_path / "tiny", b"weights", hashlib.sha256(b"weights").hexdigest())
    assert problems(tmp_path) == []


def test_changed_missing_and_unlisted_weights_are_found(tmp_path: Path) -> None:
    write_card(tmp_path / "a", b"changed", hashlib.sha256(b"weights").hexdigest())
    write_card(tmp_path / "b", b"", hashlib.sha256(b"").hexdigest())
    (tmp_path / "b" / "vq.safetensors").unlink()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "extra.safetensors").write_bytes(b"")
    found = problems(tmp_path)
    assert len(found) == 3
    assert "check out the file again" in found[0]
    assert "missing" in found[1]
    assert "no card" in found[2]


def test_an_untouched_clone_has_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, ""), out
    shipped = sorted(path.name for path in ASSETS.rglob("*.safetensors"))
    assert sorted(line.split()[1] for line in out.splitlines() if ".safetensors" in line) == shipped
    assert any(name.startswith("latent-") for name in shipped)


def test_a_changed_or_unlisted_up_sampler_is_found(tmp_path: Path) -> None:
    shutil.copytree(ASSETS / "tiny" / "upsamplers", tmp_path / "tiny" / "upsamplers")
    shutil.copyfile(ASSETS / "tiny" / "card.json", tmp_path / "tiny" / "card.json")
    first, second, *_ = sorted((tmp_path / "tiny" / "upsamplers").glob("*.safetensors"))
    first.write_bytes(b"changed")
    second.with_suffix(".json").unlink()
    found = [text for text in problems(tmp_path) if "missing" not in text]  # the family's own parts were not copied
    assert len(found) == 2
    assert f"of {first.stem}.json; check out" in found[0]
    assert "no card" in found[1]


def test_no_weights_is_a_problem(tmp_path: Path) -> None:
    assert len(problems(tmp_path)) == 1


def test_examine_leaves_nothing_behind(tmp_path: Path) -> None:
    write_card(tmp_path / "assets", b"w", hashlib.sha256(b"w").hexdigest())
    target = tmp_path / "runs" / "x"
    names = [finding.name for finding in examine(target, tmp_path / "assets")]
    assert {"python", "torch", "processors", "devices", "vq.safetensors", "write access"} <= set(names)
    assert not target.exists()


def test_versions_are_known_without_imports() -> None:
    found = versions()
    assert found["numpy"]
    assert found["python"]


def test_git_state_sees_an_uncommitted_change(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *args], cwd=tmp_path, check=True, capture_output=True)

    assert git_state(tmp_path) == {"commit": None, "diff_sha256": None}
    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "m")
    clean = git_state(tmp_path)
    (tmp_path / "a").write_text("2")
    dirty = git_state(tmp_path)
    assert clean["commit"] == dirty["commit"]
    assert clean["diff_sha256"] == ""
    assert dirty["diff_sha256"]
