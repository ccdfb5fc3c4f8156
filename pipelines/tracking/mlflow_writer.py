"""Entries of the outbox -> runs in MLflow: parent = sweep, child = cell. The only place that writes to MLflow.

Doing it again adds nothing, wherever it stopped: runs are found by their tags, points carry the time of their entry
(the same point twice is one), a value that is the run's latest is not logged again, and artifacts have fixed names.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mulosd.errors import EnvironmentProblem
from pipelines.tracking.mlflow_search import active_experiment, search_runs
from pipelines.tracking.outbox import Entry
from pipelines.tracking.tracking_uri import EXPERIMENT

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

TAG_LIMIT = 5000  # characters that every supported server stores
NUM_LINKS = 40  # children that the note of a sweep links to, at most
# A server that just answered should answer again soon: MLflow's own defaults wait for many minutes. No reports home.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# (cell key, sample ids, time in ms, folder to fill) -> how many of the samples were found
PictureMaker = Callable[[str, Sequence[str], int, Path], int]


class Writer:
    """Logs the entries of one sweep. pictures: fills a folder with the artifacts of a cell."""

    def __init__(self, uri: str, artifacts: Path, sweep_key: str, pictures: PictureMaker) -> None:
        from mlflow.tracking import MlflowClient

        self._client: MlflowClient = MlflowClient(tracking_uri=uri)
        self._experiment = _experiment(self._client, None if uri.startswith("http") else artifacts)
        self._sweep_key = sweep_key
        self._pictures = pictures
        self._stale: set[str] = set()
        runs = search_runs(self._client, self._experiment, f"tags.`mulosd.sweep_key` = '{self._sweep_key}'")
        self._runs: dict[str, Run] = {run.data.tags.get("mulosd.cell_key", ""): run for run in runs}
        self._parent = self._run_id("", sweep_key, {}, None)

    def log(self, entry: Entry, *, params: Mapping[str, str]) -> str:
        """Log one entry; returns the id of its run. params: of the cell's last entry, as MLflow never changes one."""
        return self._log_cell(entry, params) if entry.cell_key else self._log_sweep(entry)

    def is_known(self, entry: Entry) -> bool:
        """Whether the entry is the last thing that its run was told, and all of it; a run that was deleted is not."""
        if entry.cell_key not in self._runs:
            return False
        run = self._run(entry.cell_key)
        tags = run.data.tags
        if entry.cell_key:
            is_linked = tags.get("mlflow.parentRunId") == self._parent
        else:
            is_linked = tags.get("mlflow.note.content") == self._note(entry)
        return is_linked and run.info.status == "FINISHED" and tags.get("mulosd.entry_sha") == entry.sha

    def run_id(self, entry: Entry) -> str:
        """Id of the run that an entry speaks of, which is there."""
        return str(self._runs[entry.cell_key].info.run_id)

    @property
    def parent(self) -> str:
        """Id of the sweep's run."""
        return self._parent

    def _run_id(self, cell_key: str, name: str, tags: Mapping[str, str], time_ms: int | None) -> str:
        if cell_key not in self._runs:
            kind = {"mulosd.kind": "cell", "mulosd.cell_key": cell_key} if cell_key else {"mulosd.kind": "sweep"}
            identity = {"mulosd.sweep_key": self._sweep_key, **kind}
            run = self._client.create_run(
                self._experiment, start_time=time_ms, tags={**identity, **tags}, run_name=name
            )
            if not run.info.run_id:
                raise EnvironmentProblem("the server answers, but not as an MLflow tracking server does")
            self._runs[cell_key] = run
        return str(self._runs[cell_key].info.run_id)

    def _log_cell(self, entry: Entry, params: Mapping[str, str]) -> str:
        from mlflow.entities import Metric, Param

        content = entry.content
        tags = {**content["tags"], "mlflow.parentRunId": self._parent}
        run_id = self._run_id(entry.cell_key, content["name"], tags, entry.time_ms)
        data = self._run(entry.cell_key).data
        if self.is_known(entry):
            return run_id
        if content["dataset"]:
            self._log_dataset(run_id, content["dataset"])
        self._check_params(run_id, data.params, params)
        self._log_pictures(run_id, entry.cell_key, content["pictures"])
        self._log_batch(
            entry,
            run_id,
            tags,
            metrics=[
                Metric(name, value, entry.time_ms, content["step"])
                for name, value in sorted(content["metrics"].items())
                if not self._has_point(run_id, data.metrics, name, value, content["step"])
            ],
            params=[Param(*item) for item in sorted(params.items()) if item[0] not in data.params],
        )
        return run_id

    def _check_params(self, run_id: str, logged: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """MLflow never changes a parameter: a run that says another value cannot be brought up to date."""
        for name, value in sorted(wanted.items()):
            if logged.get(name, value) != value:
                raise EnvironmentProblem(
                    f"run {run_id} has the parameter {name} = {logged[name]} and the store says {value}; "
                    "delete that run in MLflow, and it is made again"
                )

    def _has_point(self, run_id: str, latest: Mapping[str, float], name: str, value: float, step: int) -> bool:
        """Whether the metric has this value now, or had it at this step: a smaller limit came back."""
        if name not in latest or latest[name] == value:
            return name in latest
        return any((p.step, p.value) == (step, value) for p in self._client.get_metric_history(run_id, name))

    def _log_dataset(self, run_id: str, dataset: Mapping[str, Any]) -> None:
        """The prompts as an input; the store keeps one link per run and digest."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        described = Dataset(
            name=dataset["name"],
            digest=dataset["digest"],
            source_type="local",
            source=json.dumps(dataset["source"], sort_keys=True),
            profile=json.dumps({"num_prompts": dataset["num_prompts"]}),
        )
        self._client.log_inputs(run_id, [DatasetInput(described, [InputTag("mlflow.data.context", "eval")])])

    def _log_pictures(self, run_id: str, cell_key: str, sample_ids: Sequence[str]) -> None:
        run = self._run(cell_key)
        wanted = json.dumps(list(sample_ids))[:TAG_LIMIT]
        if not sample_ids or run.data.tags.get("mulosd.pictures") == wanted:
            return
        with tempfile.TemporaryDirectory() as folder:
            num_found = self._pictures(cell_key, sample_ids, run.info.start_time, Path(folder))
            if num_found:
                self._client.log_artifacts(run_id, folder)
                self._client.set_tag(run_id, "mlflow.loggedImages", "True")
            if num_found == len(sample_ids):  # otherwise an image failed, and may be there next time
                self._client.set_tag(run_id, "mulosd.pictures", wanted)

    def _log_sweep(self, entry: Entry) -> str:
        content = entry.content
        if self.is_known(entry):
            return self._parent
        for name, text in content["texts"].items():
            self._client.log_text(self._parent, text, name)
        for path in map(Path, content["files"]):
            if path.is_file():
                self._client.log_artifact(self._parent, str(path))
        if content["dataset"]:
            self._log_dataset(self._parent, content["dataset"])
        tags = {**content["tags"], "mlflow.note.content": self._note(entry), "mlflow.runName": content["name"]}
        self._log_batch(entry, self._parent, tags)
        return self._parent

    def _note(self, entry: Entry) -> str:
        """The note of the sweep, with links to the runs that its cells have now."""
        links = [
            (cell["name"], str(self._runs[cell["cell_key"]].info.run_id))
            for cell in entry.content["cells"]
            if cell["cell_key"] in self._runs
        ]
        return note_of(entry.content["note"], links, self._experiment, self._sweep_key)

    def _log_batch(self, entry: Entry, run_id: str, tags: Mapping[str, str], **points: Any) -> None:
        """Log points and tags with the digest of the entry, which MLflow writes last; then the run is finished."""
        from mlflow.entities import RunTag

        run = self._run(entry.cell_key)
        fresh = {name: value for name, value in tags.items() if run.data.tags.get(name) != value}
        fresh["mulosd.entry_sha"] = entry.sha
        self._client.log_batch(run_id, tags=[RunTag(*item) for item in fresh.items()], **points)
        if run.info.status != "FINISHED":
            self._client.set_terminated(run_id, end_time=max(entry.time_ms, run.info.start_time))
        self._stale.add(entry.cell_key)

    def _run(self, cell_key: str) -> "Run":
        """The run as MLflow has it now."""
        if cell_key in self._stale:
            self._runs[cell_key] = self._client.get_run(self._runs[cell_key].info.run_id)
            self._stale.discard(cell_key)
        return self._runs[cell_key]


def note_of(note: str, links: Sequence[tuple[str, str]], experiment: str, sweep_key: str) -> str:
    """Markdown of the parent: the note, then links to the cells (MLflow's page of a run has none), within the limit."""
    head = f"{note.strip()}\n\n" if note.strip() else ""
    rest = f"All cells: search runs with ``tags.`mulosd.sweep_key` = '{sweep_key}'``.\n"
    lines = [f"- [{name}](#/experiments/{experiment}/runs/{run_id})\n" for name, run_id in links[:NUM_LINKS]]
    if len(head) + sum(map(len, lines)) + len(rest) > TAG_LIMIT:
        head = "The table is too long for a note: see the artifact table.md.\n\n"
    room = TAG_LIMIT - len(head) - len(rest) - 1
    shown = ""
    for line in lines:
        if len(shown) + len(line) > room:
            break
        shown += line
    return f"{head}{shown}\n{rest}"


def _experiment(client: "MlflowClient", artifacts: Path | None) -> str:
    """Id of the experiment, made where there is none. artifacts: None leaves their place to the server."""
    found = active_experiment(client)
    if found is not None:
        return found
    made = client.create_experiment(EXPERIMENT, artifact_location=artifacts.as_uri() if artifacts else None)
    if not made:
        raise EnvironmentProblem("the server answers, but not as an MLflow tracking server does")
    return str(made)
