"""Output folders and tracking URIs of commands that may run inside a Ray job."""

from pathlib import Path

from mulosd.errors import ConfigError
from pipelines.host.job_env import submission_id
from pipelines.tracking.tracking_uri import check_uri


def check_job_paths(out: Path, tracking_uri: str | None) -> None:
    """ConfigError for a relative output folder inside a job, whose working directory is a copy that is thrown away."""
    if tracking_uri is not None:
        check_uri(tracking_uri)
    if submission_id() is not None and not out.is_absolute():
        raise ConfigError(
            f"--out {out} is relative, and inside a Ray job the working directory is a copy that is thrown away; "
            "give an absolute path, or use `mulosd submit`."
        )
