"""What a driver knows of the Ray job it runs in, from the environment that the job server gives it. Light, no Ray."""

import json
import os
from pathlib import Path

from mulosd.errors import ConfigError
from pipelines.tracking.tracking_uri import check_uri

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray's job server, with the metadata of the submission
COMMIT = "mulosd.commit"
DIFF = "mulosd.diff_sha256"


def job_metadata() -> dict[str, str]:
    """The metadata of the job this process is the driver of; {} outside a job."""
    config = os.environ.get(JOB_CONFIG)
    return dict(json.loads(config).get("metadata") or {}) if config else {}


def submission_id() -> str | None:
    """The id that the job was submitted under; None outside a job."""
    return job_metadata().get("job_submission_id")


def git_of_job() -> dict[str, str | None]:
    """commit and diff_sha256 as they were where the job was submitted: the copy in the job has no repository."""
    metadata = job_metadata()
    return {"commit": metadata.get(COMMIT) or None, "diff_sha256": metadata.get(DIFF)}


def check_job_paths(out: Path, tracking_uri: str | None) -> None:
    """ConfigError for a relative output folder inside a job, whose working directory is a copy that is thrown away."""
    if tracking_uri is not None:
        check_uri(tracking_uri)
    if submission_id() is not None and not out.is_absolute():
        raise ConfigError(
            f"--out {out} is relative, and inside a Ray job the working directory is a copy that is thrown away; "
            "give an absolute path, or use `mulosd submit`."
        )
