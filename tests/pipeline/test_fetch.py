"""`mulosd fetch` against a hub on this machine: commits, resuming, hashes, and what a user can fix."""

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants

from mulosd.convert.fetch import Fetched, fetch
from mulosd.errors import ConfigError, DataError, EnvironmentProblem

COMMIT = "a" * 40
FILES = {
    "peizesun/llamagen_t2i": {
        "vq_ds16_t2i.pt": b"vq" * 500,
        "t2i_XL_stage1_256.pt": b"one" * 100_000,
        "t2i_XL_stage2_512.pt": b"two" * 500,
    },
    "google/flan-t5-xl": {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"pickled",
        "nested/config.json": b"{}",
    },
}


def lfs(name: str, data: bytes) -> dict[str, Any] | None:
    """What the hub says of a large file; of others it states no sha256."""
    known = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
    return None if name.endswith(".json") else known


class Hub(ThreadingHTTPServer):
    """Serves FILES as the hub does, the hashes of large ones stated; a download of `cut` breaks off in the middle, the
    first or, with `is_down`, every one, which then sends nothing more."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {repo: dict(files) for repo, files in FILES.items()}
        self.cut, self.is_down = "", False
        self.ranges: list[str] = []
        self.downloads: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.info("/".join(parts[2:4]), parts[-1])
            return
        repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        data = self.server.files.get(repo, {}).get(name)
        if data is None or revision != COMMIT:
            self.refuse("EntryNotFound")
            return
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.server.ranges.append(name)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not with_body:
            return
        self.server.downloads.append(name)
        if name == self.server.cut:
            self.server.cut = name if self.server.is_down else ""
            self.wfile.write(data[start : len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])

    def info(self, repo: str, revision: str) -> None:
        files = self.server.files.get(repo)
        if files is None or revision not in ("main", COMMIT):
            self.refuse("RepoNotFound" if files is None else "RevisionNotFound")
            return
        siblings = [{"rfilename": name, "size": len(data), "lfs": lfs(name, data)} for name, data in files.items()]
        body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # looks so often whether it should stop
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("MULOSD_WEIGHTS", str(tmp_path))
    yield server
    server.shutdown()
    server.server_close()


def all_of(**options: Any) -> list[Fetched]:
    return list(fetch("llamagen-xl", **options))


def place(tmp_path: Path) -> Path:
    return tmp_path / "sources" / "peizesun--llamagen_t2i"


def test_a_family_comes_with_commit_and_hashes(hub: Hub, tmp_path: Path) -> None:
    done = {fetched.part: fetched for fetched in all_of()}
    assert set(done) == {"vq", "model-256", "model-512", "t5"}
    assert {fetched.revision for fetched in done.values()} == {COMMIT}
    assert done["vq"].path.read_bytes() == b"vq" * 500
    assert done["vq"].command == f"mulosd convert {done['vq'].path} --family llamagen-xl --part vq"
    record = json.loads((place(tmp_path) / "sources.json").read_text())
    assert record["revision"] == COMMIT
    assert record["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES["peizesun/llamagen_t2i"].items()
    }
    # of a folder what an encoder needs, nothing pickled
    assert sorted(p.name for p in done["t5"].path.iterdir() if p.is_file()) == [
        "config.json",
        "model.safetensors",
        "sources.json",
    ]


def test_fetching_again_downloads_nothing(hub: Hub) -> None:
    all_of()
    before = list(hub.downloads)
    all_of()
    assert hub.downloads == before


def test_a_broken_download_resumes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is kept of a broken download is whole chunks
    hub.cut = "t2i_XL_stage1_256.pt"
    (done,) = all_of(parts=("model-256",))
    assert done.path.read_bytes() == b"one" * 100_000
    assert hub.ranges == ["t2i_XL_stage1_256.pt"]


def test_the_same_command_continues_what_an_earlier_run_left(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks in the middle and stays broken until the client gives up; then the hub is back."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.cut, hub.is_down = "t2i_XL_stage1_256.pt", True
    with pytest.raises(EnvironmentProblem, match="the same command resumes"):
        all_of(parts=("model-256",))
    (part,) = place(tmp_path).iterdir()
    assert part.name == f".t2i_XL_stage1_256.pt.{COMMIT}.part"
    assert part.read_bytes() == b"one" * 50_000
    hub.cut = ""
    hub.downloads.clear()
    hub.ranges.clear()
    (done,) = all_of(parts=("model-256",))
    assert done.path.read_bytes() == b"one" * 100_000
    assert hub.downloads == hub.ranges == ["t2i_XL_stage1_256.pt"]
    assert not part.exists()


def test_a_file_that_is_not_the_hubs_is_refused(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged on the way, or put there by hand; the right one is taken as it is."""
    with monkeypatch.context() as patch:
        patch.setattr("tests.pipeline.test_fetch.lfs", lambda *_: {"size": 1000, "sha256": "0" * 64, "pointerSize": 1})
        with pytest.raises(DataError, match=r"\.part: sha256 is .*, the hub says 000000000000"):
            all_of(parts=("vq",))
    assert not (place(tmp_path) / "vq_ds16_t2i.pt").exists()
    (place(tmp_path) / "vq_ds16_t2i.pt").write_bytes(b"another")
    with pytest.raises(DataError, match=r"vq_ds16_t2i\.pt: sha256 is .*, the hub says "):
        all_of(parts=("vq",))
    (place(tmp_path) / "vq_ds16_t2i.pt").write_bytes(b"vq" * 500)
    hub.downloads.clear()
    assert all_of(parts=("vq",))[0].path.read_bytes() == b"vq" * 500
    assert hub.downloads == []


def test_a_full_disk_is_not_called_a_broken_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(EnvironmentProblem, match=r"cannot be written \(No space left on device\); free some space"):
        all_of(parts=("vq",))


def test_a_dry_run_downloads_nothing(hub: Hub, tmp_path: Path) -> None:
    assert [fetched.revision for fetched in all_of(is_dry=True)] == [COMMIT] * 4
    assert hub.downloads == []
    assert not (tmp_path / "sources").exists()


def test_a_changed_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    all_of(parts=("vq",))
    path = place(tmp_path) / "sources.json"
    record = json.loads(path.read_text())
    record["files"]["vq_ds16_t2i.pt"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"sha256 is .*, sources\.json says 000000000000"):
        all_of(parts=("vq",))
    path.write_text('{"revision": 3}')
    with pytest.raises(DataError, match="not a record of fetched files"):
        all_of(parts=("vq",))


def test_another_commit_needs_another_folder(hub: Hub, tmp_path: Path) -> None:
    pinned = {"peizesun/llamagen_t2i": COMMIT}
    assert all_of(parts=("vq",), revisions=pinned)[0].revision == COMMIT
    with pytest.raises(ConfigError, match=f"holds commit {COMMIT}; use that one, or another --out"):
        all_of(parts=("vq",), revisions={"peizesun/llamagen_t2i": "b" * 40})
    with pytest.raises(DataError, match=r"at b+: the hub has none"):
        all_of(parts=("vq",), revisions={"peizesun/llamagen_t2i": "b" * 40}, out=tmp_path / "other")


def test_what_a_user_can_fix(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown family 'llamagen'.*Did you mean 'llamagen-xl'"):
        list(fetch("llamagen"))
    with pytest.raises(ConfigError, match=r"unknown part 'vqq'.*Did you mean 'vq'"):
        all_of(parts=("vqq",))
    with pytest.raises(ConfigError, match="unknown repository 'a/b'"):
        all_of(revisions={"a/b": COMMIT})
    del hub.files["peizesun/llamagen_t2i"]["vq_ds16_t2i.pt"]
    with pytest.raises(DataError, match=r"holds no vq_ds16_t2i\.pt"):
        all_of(parts=("vq",))
    del hub.files["peizesun/llamagen_t2i"]
    with pytest.raises(DataError, match="the hub has none, or this user may not see it"):
        all_of(parts=("vq",))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EnvironmentProblem, match="the hub could not be reached"):
        all_of(parts=("vq",))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentProblem, match="HF_HUB_OFFLINE is set; unset it"):
        all_of(parts=("vq",))
