"""The toy prompt set for sweeps of `tests.fakes`, and no weights folder."""

import pytest

from tests import fakes


@pytest.fixture(autouse=True)
def toy_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))


@pytest.fixture(autouse=True)
def _weights_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULOSD_WEIGHTS", "")  # --weights sets it; this puts it back
