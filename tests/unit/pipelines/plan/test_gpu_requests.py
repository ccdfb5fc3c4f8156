"""GPUs per actor: from the sweep file, over the command line, and in no key."""

import pytest

from mulosd.errors import ConfigError
from pipelines.plan.build import build_plan
from pipelines.plan.gpu_requests import override_gpus, parse_num_gpus
from tests import fakes
from tests.fakes import toy_sweep

BOTH = ("fake-a", "fake-b")


@pytest.fixture(autouse=True)
def toy_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))


def test_the_command_line() -> None:
    assert parse_num_gpus([]) == {}
    assert parse_num_gpus(["2", "tiny-high=0.5"]) == {"": 2.0, "tiny-high": 0.5}


@pytest.mark.parametrize("text", ["", "two", "=1", "tiny="])
def test_a_bad_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give a number for all targets"):
        parse_num_gpus([text])


@pytest.mark.parametrize("text", ["-1", "nan", "a=inf", "1.5", "a=2.5", "1024"])
def test_a_number_that_cannot_be_booked_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="fraction of one GPU or a whole number"):
        parse_num_gpus([text])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0.5, {"": 0.5}), (0, {"": 0.0}), ({"fake-b": 2}, {"fake-b": 2.0}), ({}, {})],
)
def test_a_sweep_file(asked: object, expected: dict[str, float]) -> None:
    assert toy_sweep(target=list(BOTH), resources={"num_gpus": asked}).num_gpus == expected


def test_all_mistakes_of_a_sweep_file_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        toy_sweep(resources={"num_gpu": 1, "num_gpus": {"fake-b": 1, "fake-a": 1.5}})
    text = str(caught.value)
    assert "resources: unknown key 'num_gpu'; allowed: num_gpus. Did you mean 'num_gpus'?" in text
    assert "resources.num_gpus: unknown target 'fake-b'; allowed: fake-a. Did you mean 'fake-a'?" in text
    assert "resources.num_gpus.fake-a = 1.5 is not allowed" in text
    for bad in (True, "two", None, -1):
        with pytest.raises(ConfigError, match=r"resources.num_gpus = .* is not allowed"):
            toy_sweep(resources={"num_gpus": bad})
    with pytest.raises(ConfigError, match="resources = 2 is not allowed"):
        toy_sweep(resources=2)


def test_the_command_line_goes_over_the_sweep() -> None:
    asked = {"": 1.0, "fake-b": 2.0}
    assert override_gpus({}, asked, BOTH) == asked
    assert override_gpus({"fake-a": 0.5}, asked, BOTH) == {**asked, "fake-a": 0.5}
    assert override_gpus({"": 4.0}, asked, BOTH) == {"": 4.0}
    with pytest.raises(ConfigError, match="--num-gpus: unknown target 'fake-c'"):
        override_gpus({"fake-c": 1.0}, asked, BOTH)


def test_no_key_depends_on_it() -> None:
    plain, asking = build_plan(toy_sweep()), build_plan(toy_sweep(resources={"num_gpus": 0.5}))
    assert (asking.sweep_key, [cell.key for cell in asking.cells]) == (plain.sweep_key, [c.key for c in plain.cells])
