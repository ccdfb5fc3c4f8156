"""What a driver knows of the Ray job it runs in, from the environment that the job server gives it. Light, no Ray."""

import json
import os

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
