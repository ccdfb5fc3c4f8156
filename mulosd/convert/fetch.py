"""`mulosd fetch`: the published files of a family, for those who have a network.

The hub's client downloads at one commit per repository: the one that was asked for, else the one that was recorded
before, else what `main` is now, which is then recorded. `sources.json` beside the files holds commits and hashes; a
file that comes out otherwise than recorded, or than the hub says, is refused. What a stopped download left is kept
beside the files as `.NAME.COMMIT.part` and continued; the client by itself would begin again.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulosd.convert.folder import RECORD, is_kept
from mulosd.errors import ConfigError, DataError, EnvironmentProblem, first_line, unknown_name
from mulosd.families.card import read_card as read_family_file
from mulosd.families.card import released_families, weights_folder
from mulosd.files.folders import refuse_package
from mulosd.files.publish import file_sha256, publish_bytes
from mulosd.files.reading import parse_json, read_file

DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
)  # errors that no network makes


@dataclass(frozen=True)
class Fetched:
    """One part's file or folder at a commit, and the command that converts it."""

    part: str
    revision: str
    path: Path
    command: str


def fetch(
    family: str,
    *,
    parts: tuple[str, ...] = (),
    revisions: Mapping[str, str] | None = None,
    out: Path | None = None,
    is_dry: bool = False,
) -> Iterator[Fetched]:
    """Fetch the files of `family` into `out` (default: `sources` in the weights folder), part by part.

    parts: only these. revisions: repository -> commit. is_dry: ask the hub for commits and names only. UserErrors for
    unknown names, no network, an offline setting, a repository or commit that is not there, and a file that changed.
    """
    released = released_families()
    if family not in released:
        raise unknown_name("family", family, released)
    known = read_family_file(released[family])["parts"]
    for name in parts:
        if name not in known:
            raise unknown_name("part", name, known, "--part")
    wanted = {name: known[name]["source"] for name in parts or known}
    repos = {source["repo"] for source in wanted.values()}
    for repo in revisions or {}:
        if repo not in repos:
            raise unknown_name("repository", repo, repos, "--revision")
    folder = out or weights_folder() / "sources"
    refuse_package(folder)
    for name, source in wanted.items():
        revision, path = _fetch_part(source, folder, (revisions or {}).get(source["repo"]), is_dry=is_dry)
        yield Fetched(name, revision, path, f"mulosd convert {path} --family {family} --part {name}")


def _fetch_part(source: Mapping[str, str], folder: Path, asked: str | None, *, is_dry: bool) -> tuple[str, Path]:
    repo = source["repo"]
    place = folder / repo.replace("/", "--")
    record = _read_record(place)
    recorded = record.get("revision")
    if asked and recorded and asked != recorded:
        raise ConfigError(
            f"--revision {repo}={asked}: {place} holds commit {recorded}; use that one, or another --out folder."
        )
    revision, listed = _listing(repo, asked or recorded or "main")
    files = [source["file"]] if "file" in source else [name for name in listed if is_kept(name)]
    absent = [name for name in files if name not in listed]
    if absent or not files:
        raise DataError(f"{repo} at {revision} holds no {', '.join(absent) or 'safetensors'}; check the repository.")
    hashes = dict(record.get("files", {}))
    for name in () if is_dry else files:
        found = _download(repo, listed[name], revision, place)
        if hashes.setdefault(name, found) != found:
            raise DataError(
                f"{place / name}: sha256 is {found[:12]}…, {RECORD} says {hashes[name][:12]}…; delete the file and "
                "fetch it again."
            )
        text = json.dumps({"repo": repo, "revision": revision, "files": hashes}, indent=1, sort_keys=True)
        publish_bytes(place / RECORD, (text + "\n").encode())
    return revision, place / source["file"] if "file" in source else place


def _listing(repo: str, revision: str) -> tuple[str, dict[str, Any]]:
    """(commit, name -> what the hub says of the file) of a repository at a revision."""
    from huggingface_hub import HfApi

    with _hub_errors_as_sentences(f"{repo} at {revision}"):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    return str(info.sha), {sibling.rfilename: sibling for sibling in info.siblings or []}


def _download(repo: str, file: Any, revision: str, place: Path) -> str:
    """Download one file, from where an earlier run was stopped; its sha256, which is the hub's where it states one."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    path = found = place / file.rfilename
    if not path.is_file():
        found = place / f".{path.name}.{revision}.part"
        url = hf_hub_url(repo, file.rfilename, revision=revision)
        with _hub_errors_as_sentences(f"{file.rfilename} of {repo}"):
            place.mkdir(parents=True, exist_ok=True)
            with found.open("ab") as part:
                http_get(url, part, resume_size=part.tell(), headers=build_hf_headers(), expected_size=file.size)
                part.flush()
                os.fsync(part.fileno())
    digest, stated = file_sha256(found), file.lfs.sha256 if file.lfs else None
    if stated not in (None, digest):
        raise DataError(
            f"{found}: sha256 is {digest[:12]}…, the hub says {stated[:12]}…; delete the file and fetch it again."
        )
    found.replace(path)
    return digest


def _read_record(place: Path) -> dict[str, Any]:
    path = place / RECORD
    if not path.is_file():
        return {}
    try:
        record: dict[str, Any] = parse_json(read_file(path))
        if not isinstance(record["revision"], str) or not isinstance(record["files"], dict):
            raise TypeError("revision and files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a record of fetched files ({error}); delete it and fetch again.") from error
    return record


@contextmanager
def _hub_errors_as_sentences(what: str) -> Iterator[None]:
    """Errors of the hub's client as sentences that say what to do."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]

    try:
        yield
    except Exception as error:
        if isinstance(error, OfflineModeIsEnabled):
            raise EnvironmentProblem(f"{what}: HF_HUB_OFFLINE is set; unset it to fetch files.") from error
        if isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", 0) in (401, 403, 404):
            raise DataError(
                f"{what}: the hub has none, or this user may not see it ({error.response.status_code}); "
                "check the name and `hf auth login`."
            ) from error
        if isinstance(error, OSError) and error.errno in DISK:
            raise EnvironmentProblem(
                f"{what} cannot be written ({error.strerror}); free some space or choose another --out folder."
            ) from error
        if isinstance(error, TransportError | OSError):
            raise EnvironmentProblem(
                f"{what}: the hub could not be reached ({first_line(error)}); the same command resumes."
            ) from error
        raise
