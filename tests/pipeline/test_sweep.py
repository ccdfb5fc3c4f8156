"""The sweep file: strict, all errors at once, one sentence each, nothing built."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mulosd.errors import ConfigError
from mulosd.methods import AR, MuLoSD
from pipelines.plan.sweep import BenchSpec, Sweep, apply_override, load_sweep, parse_override, parse_sweep
from tests.fakes import SWEEP, toy_sweep

FAKES = {"families": "tests.fakes", "registry": "tests.fakes"}


def error_of(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        toy_sweep(**changes)
    return str(caught.value)


def load(tmp_path: Path, text: str, *overrides: str) -> Sweep:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return load_sweep(path, overrides, **FAKES)


YAML = """\
name: toy
target: [fake-a, fake-b]
prompts: {set: toy}
methods:
  - method: ar
  - {method: mulosd, set: {pool_k: 4}, grid: {tau: [0.05, 1], radius: [0, 1]}}
bench: {prompts: 2}
"""


def test_a_sweep_file(tmp_path: Path) -> None:
    sweep = load(tmp_path, YAML)
    assert sweep.targets == ("fake-a", "fake-b")
    assert sweep.methods[0] == AR()
    assert sweep.methods[1:] == tuple(MuLoSD(pool_k=4, tau=tau, radius=r) for tau in (0.05, 1.0) for r in (0, 1))
    assert sweep.bench == BenchSpec(prompts=2, warmup=1)
    assert (sweep.batch_size, sweep.chunk_prompts, sweep.max_failed) == (32, 64, 0)


def test_a_knob_that_one_configuration_uses_may_idle_at_its_default_in_others() -> None:
    knobs = {"method": "mulosd", "set": {"radius": 1}, "grid": {"rejection": ["expand", "local"]}}
    sweep = toy_sweep(methods=[knobs])
    assert sweep.methods == (MuLoSD(), MuLoSD(rejection="local"))


def test_overrides_go_through_the_schema(tmp_path: Path) -> None:
    sweep = load(
        tmp_path,
        YAML,
        "methods.1.grid.tau=[0.3]",
        "bench.warmup=0",
        "bench.batches=[1,4]",
        "target=fake-a",
        "base_seed=7",
    )
    assert [m.tau for m in sweep.methods if isinstance(m, MuLoSD)] == [0.3, 0.3]
    assert (sweep.bench, sweep.targets, sweep.base_seed) == (BenchSpec(2, 0, (1, 4)), ("fake-a",), 7)
    with pytest.raises(ConfigError, match="Did you mean 'batch_size'"):
        load(tmp_path, YAML, "batch_sise=3")
    with pytest.raises(ConfigError, match="does not exist in a list of 2 items"):
        load(tmp_path, YAML, "methods.2.method=ar")
    with pytest.raises(ConfigError, match="does not exist in the value 'toy'"):
        load(tmp_path, YAML, "name.deeper=1")


def test_overrides_reach_linked_and_varied_knobs(tmp_path: Path) -> None:
    text = YAML.replace("grid: {tau: [0.05, 1], radius: [0, 1]}", "zip: {tau: [0.1, 0.2], radius: [0, 1]}")
    sweep = load(tmp_path, text, "methods.1.zip.tau=[0.3, 0.4]", "methods.1.vary.island_window=[2]")
    taus = [(m.tau, m.radius, m.island_window) for m in sweep.methods if isinstance(m, MuLoSD)]
    assert taus == [(0.3, 0, 4), (0.3, 0, 2), (0.4, 1, 4), (0.4, 1, 2)]


def test_only_keeps_the_methods_it_names_and_the_control_rows(tmp_path: Path) -> None:
    text = YAML.replace("methods:", "methods:\n  - method: draft-only\n  - method: zipar")
    assert [m.name for m in load(tmp_path, text, "only=zipar").methods] == ["draft-only", "zipar", "ar"]
    assert {m.name for m in load(tmp_path, text, "only=[mulosd, zipar]").methods} == {
        "draft-only",
        "zipar",
        "mulosd",
        "ar",
    }
    with pytest.raises(ConfigError, match=r"unknown method of this sweep 'zpar'; .*Did you mean 'zipar'"):
        load(tmp_path, text, "only=zpar")
    with pytest.raises(ConfigError, match=r"method of this sweep 'lantern' is not built yet"):
        load(tmp_path, text, "only=lantern")
    with pytest.raises(ConfigError, match="give a name or a list of names"):
        load(tmp_path, text, "only=3")


def test_ten_thousand_configurations_are_checked_in_time() -> None:
    start = time.process_time()
    sweep = toy_sweep(methods=[{"method": "mulosd", "grid": {"tau": [i / 1e4 for i in range(10_000)]}}])
    assert len(sweep.methods) == 10_000
    assert time.process_time() - start < 5


def test_parse_override() -> None:
    assert parse_override("a.b=[1, 2]") == ("a.b", [1, 2])
    assert parse_override("a=b=c") == ("a", "b=c")
    for wrong in ("a", "=1", "a..b=1"):
        with pytest.raises(ConfigError, match="key=value"):
            parse_override(wrong)
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_override("a=[1")
    raw: dict[str, Any] = {"a": {"b": 1}}
    apply_override(raw, "a.c.d", 2)
    assert raw == {"a": {"b": 1, "c": {"d": 2}}}


def test_all_errors_at_once() -> None:
    text = error_of(
        target="fake-c",
        evaluators=["men"],
        prompts={"name": "scenes", "slpit": "val"},
        max_hours=2,
        methods=[
            {"method": "mulosd", "grid": {"tau": [float("nan"), 0.1]}},
            {"method": "mulo"},
            {"method": "ar", "st": 1},
        ],
        batch_size=0,
        unknown=1,
    )
    for part in (
        "unknown target 'fake-c'",
        "prompts scenes: unknown key 'slpit'",
        "max_hours needs",
        "Did you mean 'mean'",
        "mulosd.tau = nan is not finite",
        "unknown method 'mulo'",
        "unknown key 'st'",
        "batch_size = 0 is not allowed",
        "unknown sweep key 'unknown'",
    ):
        assert part in text
    assert all(line.startswith("sweep: ") for line in text.splitlines())


def test_each_problem_is_one_line() -> None:
    assert len(error_of(target="fake-c", batch_size=0).splitlines()) == 2


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"name": "a/b"}, "letters, digits"),
        ({"target": 3}, "name or a list of names"),
        ({"target": ["fake-a", "fake-a"]}, "twice"),
        ({"prompts": []}, "prompts = []"),
        ({"methods": []}, "methods = []"),
        ({"methods": ["ar"]}, "the key method"),
        ({"methods": [{"method": "ar"}, {"method": "ar"}]}, "repeats the configuration"),
        ({"methods": [{"method": "mulosd", "grid": {"tau": 0.1}}]}, "a list with at least one value"),
        ({"methods": [{"method": "mulosd", "grid": {"tau": []}}]}, "a list with at least one value"),
        ({"methods": [{"method": "mulosd", "set": {"tau": 1}, "grid": {"tau": [1]}}]}, "in set and in grid"),
        ({"methods": [{"method": "mulosd", "set": [1]}]}, "are mappings of knobs"),
        ({"methods": [{"method": "mulosd", "set": {"tua": 1}}]}, "Did you mean 'tau'"),
        ({"methods": [{"method": "mulosd", "set": {"tau": "high"}}]}, "wrong type"),
        (
            {
                "methods": [
                    {"method": "mulosd", "set": {"radius": 1}, "grid": {"rejection": ["local"], "tau": [0.1, 1]}}
                ]
            },
            "radius = 1 does nothing with rejection 'local'",
        ),
        ({"bench": 3}, "bench = 3"),
        ({"bench": {"prompt": 3}}, "Did you mean 'prompts'"),
        ({"bench": {"prompts": 0}}, "bench.prompts = 0"),
        ({"bench": {"batches": [4, 16]}}, "bench.batches = [4, 16] is not allowed; give growing sizes from 1 on"),
        ({"bench": {"batches": [1, 4, 4]}}, "bench.batches = [1, 4, 4]"),
        ({"bench": {"batches": [True, 2]}}, "bench.batches = [True, 2]"),
        ({"bench": {"batches": 4}}, "bench.batches = 4"),
        ({"batch_size": True}, "batch_size = True"),
        ({"batch_size": 2.5}, "batch_size = 2.5"),
        ({"methods": [{"method": "mulosd", "grd": {"tau": [1]}}]}, "Did you mean 'grid'"),
        ({"methods": [{"method": "mulosd", "zip": {"tau": [1], "pool_k": [1, 2]}}]}, "equally many values"),
        ({"methods": [{"method": "mulosd", "vary": {"tua": [1]}}]}, "Did you mean 'tau'"),
        ({"methods": [{"method": "mulosd", "grid": {"tau": [1, 1]}}]}, "repeats the configuration"),
        ({"prompts": {"name": "scene"}}, "Did you mean 'scenes'"),
        ({"prompts": {"name": "scenes", "cuont": 3}}, "Did you mean 'count'"),
        ({"max_cells": 2}, "3 cells"),
        ({"ms_per_forward": 0}, "a finite number above 0"),
        ({"ms_per_forward": float("nan")}, "a finite number above 0"),
        ({"max_hours": True, "ms_per_forward": 1}, "a finite number above 0"),
        ({"max_hours": 3}, "max_hours needs ms_per_forward"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"dtype": "fp32"}, "unknown dtype"),
    ],
)
def test_refused(changes: dict[str, Any], part: str) -> None:
    assert part in error_of(**changes)


def test_missing_settings() -> None:
    with pytest.raises(ConfigError, match="prompts is missing"):
        parse_sweep({key: value for key, value in SWEEP.items() if key != "prompts"}, **FAKES)


def test_tau_infinity_in_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tau = inf is not finite"):
        load(tmp_path, YAML.replace("0.05", ".inf"))


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_sweep(tmp_path / "missing.yaml")
    for text, part in (("a: [", "not valid YAML"), ("- a", "is a mapping"), ("name: a\nname: b", "given twice")):
        with pytest.raises(ConfigError, match=part) as caught:
            load(tmp_path, text)
        assert len(str(caught.value).splitlines()) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="a pipe or a device"):
        load_sweep(tmp_path / "pipe.yaml")


def test_numbers_and_merge_keys_in_a_sweep_file(tmp_path: Path) -> None:
    text = YAML.replace("- method: ar", "- {method: mulosd, set: &base {tau: 1e-4, pool_k: 010}}")
    text = text.replace("set: {pool_k: 4}, grid: {tau: [0.05, 1], radius: [0, 1]}", "set: {<<: *base, radius: 2}")
    sweep = load(tmp_path, text + "base_seed: 0100\n", "batch_size=010")
    assert sweep.methods == (MuLoSD(tau=1e-4, pool_k=10), MuLoSD(tau=1e-4, pool_k=10, radius=2))
    assert (sweep.base_seed, sweep.batch_size) == (100, 10)


def test_the_documented_example_is_a_sweep(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n")[1].split("```")[0].replace("[geneval, detail, speed]", "[mean]")
    sweep = load(tmp_path, example.replace("[tiny-mid, tiny-high]", "[fake-a, fake-b]"))
    assert len(sweep.methods) == 2 + 2 + (1 + 4)
    assert (sweep.ms_per_forward, sweep.max_hours) == (12.0, 2.0)
