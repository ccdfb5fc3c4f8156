"""The toy prompt set for sweeps of `tests.fakes`."""

import pytest

from tests import fakes


@pytest.fixture(autouse=True)
def toy_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.plan.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))
