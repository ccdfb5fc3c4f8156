"""Two cells of real stores against each other: which are meant, what is said, what is drawn."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from dashboards.pair import PairMetric
from evaluators.statistics.intervals import describe_bootstrap
from mulosd.errors import ConfigError, DataError, UserError
from mulosd.types import GENEVAL_TASKS
from pipelines.cli.main import cli
from pipelines.compare import pair_inputs as pair_sides
from pipelines.compare.pair_inputs import Side, find_sides, matched
from pipelines.compare.pairwise import compare_pair, settings_of, write_pair
from pipelines.plan.build import build_plan
from pipelines.run.driver import run_sweep
from tests import fakes
from tests.fakes import toy_sweep

NUM = 24


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps: toy (ar and two MuLo-SD cells), and `other` with one of its cells and another seed of ar."""
    folder = tmp_path_factory.mktemp("pairs") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(NUM), "toy-prompts-1"))
        run_sweep(toy_sweep(), out=folder)
        run_sweep(toy_sweep(name="other", methods=[{"method": "ar"}], base_seed=5), out=folder)
    return folder


@pytest.fixture(scope="module")
def keys() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.plan.build.load_prompt_set", lambda spec: (fakes.prompts(NUM), "toy-prompts-1"))
        return [cell.key for cell in build_plan(toy_sweep()).cells]


def one(store: Path, name: str) -> Side:
    (side,) = find_sides(name, store=store)
    return side


def scored(side: Side, right: Callable[[int], float], *, images: int = 1) -> Side:
    """The side with GenEval verdicts: right(prompt number) is the value of each of its images."""
    ids = {f"toy/{i:03d}/{j}": i for i in range(NUM) for j in range(images)}

    def metric(values: dict[str, float]) -> dict[str, Any]:
        mean = sum(values.values()) / len(values)
        protocol = {"interval": describe_bootstrap(proportion=True)}
        return {"value": mean, "direction": "higher", "unit": "share of images", "version": "1", "protocol": protocol,
                "n": len(values), "n_missing": 0, "interval": None, "reason": "", "per_sample": values}  # fmt: skip

    metrics = {"geneval/overall": metric({s: right(i) for s, i in ids.items()})}
    for number, task in enumerate(GENEVAL_TASKS):
        metrics[f"geneval/{task}"] = metric({s: right(i) for s, i in ids.items() if i % 6 == number})
    return replace(side, row=replace(side.row, metrics=side.row.metrics | metrics))


def metric_of(a: Side, b: Side, name: str) -> PairMetric:
    return next(metric for metric in compare_pair(a, b).metrics if metric.name == name)


def test_a_cell_is_named_in_many_ways(store: Path, keys: list[str]) -> None:
    label = "mulosd tau=0.2 pool_k=2"
    ways = [
        find_sides(label, store=store),
        find_sides(f"fake-a {label}", store=store),
        find_sides(keys[2][:6], store=store),
        find_sides(f"{store}:{label}", store=None),
        find_sides(str(store / "cells" / keys[2]), store=None),
    ]
    assert {side.row.cell_key for sides in ways for side in sides} == {keys[2]}
    assert all(len(sides) == 1 for sides in ways)


def test_a_folder_that_only_has_the_name_is_no_store(
    store: Path, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / keys[0]).mkdir()
    monkeypatch.chdir(tmp_path)
    assert one(store, keys[0]).row.cell_key == keys[0]
    with pytest.raises(DataError, match="is not a store"):
        find_sides(keys[0], store=None)


def test_the_newest_sweep_wins_and_another_can_be_chosen(store: Path, keys: list[str]) -> None:
    assert one(store, "ar").config["base_seed"] == 5
    (older,) = find_sides("ar", store=store, sweep_key=one(store, keys[0]).sweep_key)
    assert older.row.cell_key == keys[0]


def test_a_sweep_or_a_store_stands_for_its_cells(store: Path, keys: list[str]) -> None:
    assert [side.row.cell_key for side in find_sides("toy", store=store)] == keys
    assert [side.config["base_seed"] for side in find_sides(str(store), store=None)] == [5]
    folder = store / "sweeps" / one(store, keys[0]).sweep_key
    assert [side.row.cell_key for side in find_sides(str(folder), store=None)] == keys


def test_names_that_fit_nothing_or_too_much(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'fake-a mulosd pool_k=2 tau=0.2'"):
        find_sides("fake-a mulosd pool_k=2 tau=0.3", store=store)
    with pytest.raises(ConfigError, match="--store DIR"):
        find_sides("ar", store=None)
    with pytest.raises(DataError, match="is not a store"):
        find_sides(str(tmp_path), store=None)
    with pytest.raises(DataError, match="is not a store"):
        find_sides("ar", store=tmp_path / "nothing")


def test_a_key_prefix_of_two_cells_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [pair_sides._Listed("s", key, "fake-a", frozenset([key])) for key in ("abcd", "abce")]
    monkeypatch.setattr(pair_sides, "_listed", lambda *_: both)
    with pytest.raises(ConfigError, match=r"fits abc. \(fake-a abc.\), abc. \(fake-a abc.\); give more of the key"):
        find_sides("abc", store=store)


def test_sides_are_matched_by_label(store: Path, keys: list[str]) -> None:
    toy = find_sides("toy", store=store)
    assert [(a.row.cell_key, b.row.cell_key) for a, b in matched(toy, toy)] == [(key, key) for key in keys]
    assert len(matched(toy, toy[:1])) == 2  # each other cell against one
    with pytest.raises(ConfigError, match="share no configuration"):
        matched(toy[:2], toy[2:] * 2)


def test_differences_are_a_minus_b(store: Path, keys: list[str]) -> None:
    a, b = one(store, keys[1]), one(store, keys[0])
    found = metric_of(a, b, "speed/forwards_per_image")
    assert (found.a, found.b, found.difference.value) == (6, 16, -10)
    assert (found.wins, found.win_rate, found.judged) == ((NUM, 0, 0), 1.0, "A better")
    mean = metric_of(a, b, "mean")
    assert mean.difference.value == pytest.approx(a.row.metrics["mean"]["value"] - b.row.metrics["mean"]["value"])
    assert mean.wins is None
    assert mean.p_value is None


def test_geneval_has_mcnemar_at_one_image_and_sign_flips_at_more(store: Path, keys: list[str]) -> None:
    sides = one(store, keys[1]), one(store, keys[0])
    a, b = scored(sides[0], lambda i: float(i < 20)), scored(sides[1], lambda i: float(6 <= i < 22))
    single = metric_of(a, b, "geneval/overall")
    assert single.test == "McNemar, exact (only the first right on 6 prompts, only the second on 2)"
    assert single.p_value == pytest.approx(2 * (1 + 8 + 28) / 256)
    assert single.wins == (6, 16, 2)
    assert single.difference.value == pytest.approx(4 / 24)
    assert single.judged.endswith("non-inferiority not shown at margin 0.05") or "non-inferior at" in single.judged
    many = [
        scored(s, f, images=2)
        for s, f in zip(sides, (lambda i: float(i < 20), lambda i: float(6 <= i < 22)), strict=True)
    ]
    several = metric_of(many[0], many[1], "geneval/overall")
    assert several.test.startswith("sign flips by prompt, exact")
    assert several.p_value == pytest.approx(single.p_value)  # the same prompts differ
    assert (several.difference.n, several.difference.n_clusters) == (48, 24)


def test_an_interval_follows_from_what_the_metric_is(store: Path, keys: list[str]) -> None:
    """Counters that are all 0 are counters; verdicts that are all 0 are shares."""
    a, b = (scored(one(store, key), lambda i: 0.0) for key in keys[:2])
    verdicts = a.row.metrics["geneval/overall"]
    counter = {**verdicts, "unit": "forwards", "protocol": {"interval": describe_bootstrap()}}
    for side in (a, b):
        side.row.metrics["speed/forwards_refresh_per_image"] = counter
    assert metric_of(a, b, "speed/forwards_refresh_per_image").difference.interval == (0.0, 0.0)
    low, high = metric_of(a, b, "geneval/overall").difference.interval or (0, 0)
    assert (low, high) == pytest.approx((-0.138, 0.138), abs=1e-3)


def test_overall_is_the_mean_of_the_tasks(store: Path, keys: list[str]) -> None:
    a = scored(one(store, keys[1]), lambda i: float(i % 6 == 0))
    b = scored(one(store, keys[0]), lambda i: 0.0)
    # Drop half of the other tasks' samples: pooled it would be 4 / 14, the mean of tasks stays 1 / 6.
    for name, metric in a.row.metrics.items():
        if name.startswith("geneval/"):
            metric["per_sample"] = {s: v for s, v in metric["per_sample"].items() if v or int(s[4:7]) < 12}
    found = metric_of(a, b, "geneval/overall")
    assert found.a == pytest.approx(1 / 6)
    assert found.difference.value == pytest.approx(1 / 6)
    assert found.difference.n_unpaired > 0


def test_what_cannot_be_compared_says_why(store: Path, keys: list[str]) -> None:
    a, b = one(store, keys[1]), one(store, keys[0])
    newer = replace(b, row=replace(b.row, metrics={"mean": {**b.row.metrics["mean"], "version": "2"}}))
    assert metric_of(a, newer, "mean").difference.reason == "scored by another version on each side"
    bare = replace(b, row=replace(b.row, metrics={"mean": {**b.row.metrics["mean"], "per_sample": {}}}))
    assert "no values per sample" in metric_of(a, bare, "mean").difference.reason
    null = replace(b, row=replace(b.row, metrics={"mean": {**b.row.metrics["mean"], "value": None, "reason": "why"}}))
    assert metric_of(a, null, "mean").difference.reason == "why"
    with pytest.raises(DataError, match="both sides are the cell"):
        compare_pair(a, a)
    with pytest.raises(ConfigError, match="Did you mean 'mean'"):
        compare_pair(a, b, metric="men")


def test_settings_name_each_knob_with_its_value(store: Path, keys: list[str]) -> None:
    a, b = one(store, keys[1]), one(store, keys[2])
    assert [(s.name, s.a, s.b) for s in compare_pair(a, b).settings] == [("knob tau", "0.05", "0.2")]
    assert settings_of(a)["knob radius"] == 1
    against_ar = {s.name: s.b for s in compare_pair(a, one(store, keys[0])).settings}
    assert against_ar["knob tau"] == "n/a"
    seeds = compare_pair(one(store, keys[0]), one(store, "ar"))
    assert any("not the noise" in note for note in seeds.notes)


def test_a_cell_with_a_setting_that_is_refused_today_is_still_compared(store: Path, keys: list[str]) -> None:
    side = one(store, "mulosd pool_k=2 tau=0.05")
    old = replace(side, config={**side.config, "knobs": {"guidance": 0.5}})
    assert settings_of(old)["knob guidance"] == 0.5
    assert settings_of(old)["knob tau"] == 0.1


def test_greedy_cells_of_before_are_not_compared_with_todays(store: Path, keys: list[str]) -> None:
    a, b = (one(store, name) for name in ("mulosd pool_k=2 tau=0.05", "mulosd pool_k=2 tau=0.2"))

    def drawn(side: Side, **knobs: float) -> Side:
        return replace(side, config={**side.config, "knobs": knobs})

    old, new = drawn(a, temperature=0.0), drawn(b, temperature=0.0)
    new = replace(new, config={**new.config, "greedy": "lowest id"})
    for sides in ((old, new), (new, old)):
        with pytest.raises(DataError, match=f"the images of {keys[1]} .* with noise among close logits"):
            compare_pair(*sides)
    compare_pair(old, drawn(b, temperature=0.0))
    compare_pair(drawn(a, temperature=0.5), new)
    compare_pair(replace(old, config={**old.config, "greedy": "lowest id"}), new)


def test_largest_changes_both_ways(store: Path, keys: list[str]) -> None:
    a = scored(one(store, keys[1]), lambda i: float(i < 20))
    b = scored(one(store, keys[0]), lambda i: float(i >= 1))
    changes = compare_pair(a, b, changes=4).changes
    assert sorted((c.sample_id, c.a, c.b) for c in changes) == [
        ("toy/000/0", 1.0, 0.0),
        ("toy/020/0", 0.0, 1.0),
        ("toy/021/0", 0.0, 1.0),
        ("toy/022/0", 0.0, 1.0),
    ]
    assert changes[0].prompt == f"prompt {int(changes[0].sample_id[4:7])}"
    by_mean = compare_pair(a, b, metric="mean", changes=2).changes
    gaps = [c.a - c.b for c in by_mean]
    values = [a.row.metrics["mean"]["per_sample"][s] - v for s, v in b.row.metrics["mean"]["per_sample"].items()]
    assert sorted(gaps) == pytest.approx([min(values), max(values)])


def test_the_command_prints_and_draws(store: Path, keys: list[str], tmp_path: Path) -> None:
    args = ["compare", keys[1], keys[0], "--store", str(store), "--out", str(tmp_path), "--prompts", "3"]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    assert "**A: fake-a mulosd pool_k=2 tau=0.05**" in done.output
    assert "Largest changes in mean:" in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"compare.md", "compare.json", "contact_sheet.png"}
    assert (tmp_path / "compare.md").read_text(encoding="utf-8") in done.output
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        assert sheet.size[1] > 3 * 128
    as_json = CliRunner().invoke(cli, [*args, "--format", "json"])
    assert json.loads(as_json.stdout)["cell_a"] == keys[1]


def test_whole_sweeps_compare_cell_by_cell(store: Path) -> None:
    done = CliRunner().invoke(cli, ["compare", "toy", "ar", "--store", str(store)])
    assert done.exit_code == 0, done.output
    assert done.output.count("**A: ") == 3
    assert len(list((store / "compare").glob("*/contact_sheet.png"))) == 3


def test_nothing_changed_draws_nothing(store: Path, keys: list[str], tmp_path: Path) -> None:
    a, b = (scored(one(store, key), lambda i: 1.0) for key in keys[:2])
    pair = compare_pair(a, b)
    assert pair.changes == ()
    assert [path.name for path in write_pair(a, b, pair, tmp_path)] == ["compare.md", "compare.json"]


def test_the_command_fails_in_one_sentence(store: Path) -> None:
    done = CliRunner().invoke(cli, ["compare", "arr", "ar", "--store", str(store)])
    assert isinstance(done.exception, UserError)
    assert len(str(done.exception).splitlines()) == 1
