"""Forwards that the estimate counts are those that the decoders make."""

from typing import Any

import pytest

from mulosd.errors import ConfigError
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, ZipAR
from pipelines.plan import build as plans
from pipelines.plan.budget import check_hours, describe_hours, device_hours, forwards_per_image
from pipelines.plan.build import build_plan
from pipelines.plan.cells import Plan
from tests import fakes
from tests.fakes import toy_sweep
from tests.unit.decoding import toys

GRID, DRAFT = (8, 8), (4, 4)


@pytest.fixture(autouse=True)
def toy_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "load_prompt_set", lambda spec: (fakes.prompts(), "toy-prompts-1"))


def plan_of(**changes: Any) -> Plan:
    return build_plan(toy_sweep(**changes))


@pytest.mark.parametrize("method", [AR(), ZipAR(window=2), ZipAR(window=20), DraftOnly(), DraftOnly(draft_window=2)])
def test_closed_forms_are_what_the_decoders_count(method: SamplerKnobs) -> None:
    expected = forwards_per_image(method, GRID, DRAFT)
    assert expected.low == expected.high
    assert {stats.forwards for stats in toys.run(method).stats} == {expected.low}


@pytest.mark.parametrize(("rows", "resample"), [(3, "islands"), ("all", "serial")])
def test_the_range_of_mulosd_holds_what_is_counted(rows: Any, resample: Any) -> None:
    for tau in (-1.0, 0.02, 1.5):
        method = MuLoSD(tau=tau, rows_per_cycle=rows, resample=resample)
        expected = forwards_per_image(method, GRID, DRAFT)
        counted = {stats.forwards for stats in toys.run(method).stats}
        assert all(expected.low <= forwards <= expected.high for forwards in counted)
        if tau < 0:
            assert counted == {expected.low}


def test_a_method_without_a_formula_is_named_beside_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZipAR, "forward_passes", SamplerKnobs.forward_passes)
    methods = [{"method": "ar"}, {"method": "zipar"}]
    lines = describe_hours(plan_of(methods=methods, ms_per_forward=3600))
    assert "0.08 CPU-hours" in lines[0]
    assert lines[-1] == "  without zipar, whose forward passes are not known in advance"
    with pytest.raises(ConfigError, match="max_hours cannot be kept, as the forward passes of zipar are not"):
        plan_of(methods=methods, ms_per_forward=3600, max_hours=9)


def test_hours_by_hand() -> None:
    # 10 prompts in chunks of 4, 4, 2 and batches of 3: 2 + 2 + 1 batches. ar: 16 forwards; 3600 ms each.
    plan = plan_of(methods=[{"method": "ar"}], ms_per_forward=3600)
    hours = device_hours(plan)
    assert hours is not None
    assert hours.low == hours.high == pytest.approx(5 * 16 * 3.6 / 3600)
    assert "0.08 CPU-hours" in describe_hours(plan)[0]
    assert "estimate" in describe_hours(plan)[0]
    assert "GPU-hours" in describe_hours(plan_of(device="cuda", ms_per_forward=1))[0]


def test_nothing_stated_nothing_said() -> None:
    plan = plan_of()
    assert device_hours(plan) is None
    assert describe_hours(plan) == []
    check_hours(plan)


def test_an_estimate_above_the_budget_is_refused_before_any_work() -> None:
    methods = [{"method": "ar"}]
    assert "max_hours 0.081" in describe_hours(plan_of(methods=methods, ms_per_forward=3600, max_hours=0.081))[0]
    with pytest.raises(ConfigError, match=r"up to 0.08 device hours by estimate, max_hours allows 0.079"):
        plan_of(methods=methods, ms_per_forward=3600, max_hours=0.079)


def test_a_budget_changes_no_key() -> None:
    keys = [cell.key for cell in plan_of().cells]
    assert [cell.key for cell in plan_of(ms_per_forward=1, max_hours=5, max_cells=9).cells] == keys
    assert plan_of(ms_per_forward=1).sweep_key == plan_of().sweep_key
