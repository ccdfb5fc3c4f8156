"""Errors of a tracking store, and how they are said: an outage or a refusal is a sentence, never a traceback."""

from mulosd.errors import EnvironmentProblem
from pipelines.tracking.tracking_uri import public_uri

LIMIT = 400  # characters of a server's answer that are shown


def tracking_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a tracking store that is away, refuses or is damaged; anything else is a bug and stays loud."""
    from alembic.util.exc import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, CommandError, EnvironmentProblem, OSError)


def said(error: Exception, uri: str) -> str:
    """The error as one line without the password of `uri`."""
    text = " ".join(str(error).replace(uri, public_uri(uri)).split()).rstrip(".")
    return text if len(text) <= LIMIT else f"{text[:LIMIT]} …"
