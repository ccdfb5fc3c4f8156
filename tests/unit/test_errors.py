"""Names that no registry holds."""

import pytest

from mulosd.errors import ConfigError, first_line, join_some, unknown_name
from mulosd.methods import METHODS, build_method
from pipelines.plan.sweep import parse_sweep
from tests.fakes import SWEEP


def test_a_near_miss_is_named():
    assert "Did you mean 'zipar'?" in str(unknown_name("method", "zpar", METHODS))


@pytest.mark.parametrize("name", ["eagle2", "lantern"])
def test_a_method_that_is_not_built_says_what_it_waits_for(name):
    with pytest.raises(ConfigError, match=r"is not built yet: .*train one first; allowed: ar,"):
        build_method(name)


def test_a_sweep_with_a_missing_evaluator_is_refused_naming_it():
    with pytest.raises(ConfigError, match=r"evaluator 'fid' is not built yet: the Inception network"):
        parse_sweep({**SWEEP, "evaluators": ["fid"]}, families="tests.fakes")


def test_nothing_that_exists_is_listed_as_missing():
    from evaluators.registry import EVALUATORS

    for registry in (METHODS, EVALUATORS):
        assert registry.planned
        assert not registry.planned.keys() & {*registry}


def test_a_long_list_names_its_first_and_counts_the_others():
    assert join_some("abcde") == "a, b, c, d, e"
    assert join_some("abcdefg") == "a, b, c, d, e and 2 more"
    assert join_some([]) == ""


def test_the_first_line_that_says_something():
    assert first_line(RuntimeError("\n\n  no head node \n at all")) == "no head node"
    assert first_line(TimeoutError(" \n")) == "TimeoutError"
