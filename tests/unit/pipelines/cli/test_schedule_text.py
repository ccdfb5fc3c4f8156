"""`mulosd generate --explain`: every knob and both samplers, a forecast that the decode keeps, no weights before."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mulosd.families.card import load_card
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs, knobs_of
from pipelines.cli import single
from pipelines.cli.main import cli
from pipelines.cli.schedule_text import explain

METHODS: list[SamplerKnobs] = [AR(), DraftOnly(draft_top_k=5), MuLoSD(), MuLoSD(rejection="raster-redraft")]


def invoke(out: Path, *args: str) -> Any:
    fixed = ["generate", "--target", "tiny-mid", "--prompt", "a red circle", "--out", str(out)]
    return CliRunner().invoke(cli, [*fixed, *args])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(knobs_of(method)))
def test_every_knob_is_said(method: SamplerKnobs) -> None:
    text = "\n".join(explain(method, load_card("tiny-mid")))
    for knob in vars(method):
        name, _, rest = knob.rpartition("draft_")
        is_sampling = (rest or name) in ("guidance", "temperature", "top_k", "top_p")
        assert re.search(rf"\b{rest}=" if is_sampling else rf"^{knob} +\S", text, re.MULTILINE), knob
    if method.name == "draft-only":
        assert re.search("^draft sampler .* top_k=5", text, re.MULTILINE)
        assert "draft 40, total 40; ar takes 256" in text


def test_the_forecast_is_worded_by_what_is_known() -> None:
    card = load_card("tiny-mid")
    islands = explain(MuLoSD(rows_per_cycle=4), card)
    assert any(line.split() == ["kv", "refresh", "(auto)"] for line in islands)
    assert "draft 44, verify 2, resample 0 to 256, refresh 0 to 1, total 46 to 303; ar takes 256" in islands[-2]
    redraft = explain(MuLoSD(rejection="raster-redraft"), card)
    assert any(line.split() == ["cycles", "1", "to", "256"] for line in redraft)
    assert any(line.split() == ["radius", "not", "used"] for line in redraft)
    serial = [line.split() for line in explain(MuLoSD(resample="serial"), card)]
    assert [line[0] for line in serial if line[1:] == ["not", "used"]] == [
        "sr_model",
        "island_window",
        "pending",
        "feedback",
    ]
    assert "by resampled_fraction" in "\n".join(explain(MuLoSD(resampled_fraction=0.2), card))


def test_a_method_without_a_formula_says_so_and_names_no_setting_of_a_sweep() -> None:
    class Own(SamplerKnobs):
        name = "own"

    lines = explain(Own(), load_card("tiny-mid"))
    assert lines[-1] == "forwards           not known in advance: own has no formula; ar takes 256"


def test_a_dry_run_loads_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(single, "load_target", refuse)
    result = invoke(tmp_path / "x.png", "--method", "mulosd", "--explain", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "mulosd on tiny-mid: 16 x 16 tokens" in result.output
    assert list(tmp_path.iterdir()) == []
    assert invoke(tmp_path / "x.png", "--method", "ar", "--dry-run").output == ""


@pytest.mark.parametrize(
    ("knob", "text"), [("radius=17", "exceeds the 16 x 16 grid"), ("pool_k=5000", "exceeds the 1024 codes")]
)
def test_what_does_not_fit_is_refused_before_weights_load(
    knob: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "load_target", lambda *args, **options: pytest.fail("weights were loaded"))
    for args in ([], ["--dry-run"]):
        result = invoke(tmp_path / "x.png", "--method", "mulosd", "--set", knob, *args)
        assert text in str(result.exception)


def test_the_decode_keeps_the_forecast(tmp_path: Path) -> None:
    knobs = ["--set", "tau=0", "--set", "rows_per_cycle=4"]
    result = invoke(tmp_path / "x.png", "--method", "mulosd", *knobs, "--explain")
    assert result.exit_code == 0, result.output
    assert "total 46 to 303" in result.output
    assert "x.png: 46 forwards for 256 tokens, 0 resampled" in result.output.replace("\n", "")
