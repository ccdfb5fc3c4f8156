"""`mulosd ui`: the MLflow server on the tracking store of a store folder, for this machine only."""

import os
import socket
import sys
from pathlib import Path

from mulosd.errors import ConfigError, DataError, EnvironmentProblem
from pipelines.tracking.sqlite_file import is_half_made
from pipelines.tracking.tracking_uri import check_uri, default_uri, public_uri, sqlite_path

HOST = "127.0.0.1"  # the server runs whatever its clients ask for: tunnel to it instead of publishing it


def serve(store_dir: Path, *, port: int, tracking_uri: str | None = None) -> None:
    """Replace this process by MLflow's server on 127.0.0.1.

    DataError where nothing is logged yet, ConfigError for a URI that is a server itself, EnvironmentProblem for a port
    in use.
    """
    command = server_command(store_dir, port=port, tracking_uri=tracking_uri)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EnvironmentProblem(f"port {port} of {HOST} is in use; choose another one with --port.") from error
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.execv(command[0], command)


def server_command(store_dir: Path, *, port: int, tracking_uri: str | None = None) -> list[str]:
    """The command line of the server; nothing is started."""
    uri = check_uri(tracking_uri or default_uri(store_dir))
    if uri.startswith("http"):
        raise ConfigError(f"{public_uri(uri)} is already a server; open it in a browser.")
    database = sqlite_path(uri)
    if database is not None and not database.is_file():
        raise DataError(f"{database} does not exist; run `mulosd run` or `mulosd track {store_dir}` first.")
    if database is not None and is_half_made(database):
        raise DataError(f"{database} was left half-made by a stopped run; `mulosd track {store_dir}` makes it again.")
    options = {
        "--backend-store-uri": uri,
        "--default-artifact-root": (store_dir.resolve() / "mlartifacts").as_uri(),
        "--host": HOST,
        "--port": str(port),
        "--workers": "1",
    }
    return [sys.executable, "-m", "mlflow", "server", *(part for pair in options.items() for part in pair)]
