"""What ran: package versions, the commit and a hash of the uncommitted changes, threads and devices.

Recorded in cells and as tags, never hashed into keys. Facts that cannot be known are None with the key present.
"""

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pipelines.host.job_env import git_of_job, submission_id

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mulosd", "torch", "numpy", "scipy", "pyarrow", "ray", "mlflow", "torchmetrics", "pillow")


def versions() -> dict[str, str | None]:
    """Installed versions by package name, without importing any of them; None where one is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def git_state(root: Path = ROOT) -> dict[str, str | None]:
    """commit, and diff_sha256 of the tracked changes against it ("" when clean); None outside a repository.

    In a Ray job the working directory is a copy without a repository: there it is the state that was submitted.
    """
    if submission_id() is not None:
        return git_of_job()
    commit = _git(root, "rev-parse", "HEAD")
    diff = _git(root, "diff", "HEAD") if commit else None
    digest = None if diff is None else hashlib.sha256(diff).hexdigest()[:16] if diff else ""
    return {"commit": commit.decode().strip() if commit else None, "diff_sha256": digest}


def machine() -> dict[str, Any]:
    """Host facts that explain timings: processor count, thread settings, load."""
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def processor_name() -> str | None:
    """The processor's model name as the kernel gives it; None where it gives none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def provenance() -> dict[str, Any]:
    """Everything above in one JSON-serialisable mapping."""
    return {"versions": versions(), "git": git_state(), "machine": machine(), "job": submission_id()}


def code_version(record: Mapping[str, Any]) -> str:
    """What made an image or a timing, in short, from a `provenance` record: `0.1.0 24d40622b8a1+3f2e9a12 torch 2.14.1`.

    The commit and, after +, the hash of uncommitted changes; what is unknown is left out.
    """
    versions, git = record.get("versions", {}), record.get("git", {})
    changes = f"+{git['diff_sha256'][:8]}" if git.get("diff_sha256") else ""
    commit = f"{(git.get('commit') or '')[:12]}{changes}"
    torch = f"torch {versions['torch']}" if versions.get("torch") else ""
    return " ".join(part for part in (versions.get("mulosd"), commit, torch) if part)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path, *args: str) -> bytes | None:
    if not (root / ".git").exists():
        return None  # an installed wheel, or a copied working directory: never the repository around it
    try:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
