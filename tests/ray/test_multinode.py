"""Two nodes with two fake GPUs each: every GPU gets its own actor and its share of the work.

Slow, and tried twice: nodes that start on a busy machine can time out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mulosd.stage.verify import verify_store
from tests.fakes import SLEEP_S

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def run_cluster(folder: Path) -> "subprocess.CompletedProcess[str]":
    """A process of its own: another Ray may live in this one."""
    notes = folder / "notes"
    notes.mkdir(parents=True)
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    env |= {"NOTES": str(notes), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    env[SLEEP_S] = "1"  # the work must outlast the start of the last actor, also on a busy machine
    command = [sys.executable, "-m", "tests.ray.multinode_driver", str(folder / "store")]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)


def test_the_work_is_spread_over_all_gpus(tmp_path: Path) -> None:
    done = run_cluster(tmp_path / "first")
    folder = tmp_path / "first"
    if done.returncode:
        folder = tmp_path / "second"
        done = run_cluster(folder)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "144 images, 0 cached, decoded 144, 0 failed" in done.stdout
    assert verify_store(folder / "store") == []
    lines = [line.split() for path in (folder / "notes").iterdir() for line in path.read_text().splitlines()]
    used = {(node, gpu) for node, gpu, _, _ in lines}
    assert len({node for node, _ in used}) == 2
    assert len(used) == 4, used  # one GPU per actor, all of them at work
    assert all(gpu == seen for _, gpu, seen, _ in lines)  # and that is the one that its process sees
    assert sum(int(num) for *_, num in lines) == 144
