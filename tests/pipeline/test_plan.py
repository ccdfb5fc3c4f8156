"""Keys, seeds and chunks: what results depend on, and nothing else."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulosd.errors import ConfigError
from mulosd.methods import AR, DraftOnly, MuLoSD, SamplerKnobs
from mulosd.types import Prompt
from pipelines.plan import build as plans
from pipelines.plan.build import build_plan, cell_config, cut_chunks
from pipelines.plan.cells import Plan, key_of, sample_id_of, seed_of
from pipelines.plan.describe import describe
from tests import fakes
from tests.fakes import toy_sweep

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_known_values() -> None:
    """Keys and seeds are a promise to stored results: these values (from `sha256sum`) must never change."""
    assert seed_of(0, "scenes/p1/0") == 6311108868396727726
    assert key_of({"b": 1, "a": [0.1, "é"]}) == "d55da47df0a3a552"
    assert sample_id_of(Prompt("geneval", "00012", "a dog"), 3) == "geneval/00012/3"


@given(st.integers(0, 2**63 - 1), st.text())
def test_seeds_fit_int64_and_repeat(base_seed: int, sample_id: str) -> None:
    seed = seed_of(base_seed, sample_id)
    assert 0 <= seed < 2**63
    assert seed == seed_of(base_seed, sample_id)


@given(st.sets(st.tuples(st.integers(0, 100), st.text(max_size=8)), min_size=2, max_size=30))
def test_seeds_differ(pairs: set[tuple[int, str]]) -> None:
    assert len({seed_of(*pair) for pair in pairs}) == len(pairs)


@given(st.dictionaries(st.text(), JSON, min_size=1))
def test_keys_ignore_the_order_of_settings(config: dict[str, object]) -> None:
    key = key_of(config)
    assert key == key_of(dict(reversed(config.items())))
    assert re.fullmatch("[0-9a-f]{16}", key)


@given(
    num=st.integers(1, 30),
    per_prompt=st.integers(1, 3),
    size=st.integers(1, 8),
    limits=st.tuples(*[st.integers(1, 40)] * 2),
)
def test_a_limit_only_shortens(num: int, per_prompt: int, size: int, limits: tuple[int, int]) -> None:
    sweep = toy_sweep(images_per_prompt=per_prompt, chunk_prompts=size)
    small, large = (ids(cut_chunks(fakes.prompts(num), sweep, limit=limit)) for limit in sorted(limits))
    full = cut_chunks(fakes.prompts(num), sweep)
    assert large[: len(small)] == small
    assert ids(full)[: len(large)] == large
    assert len(small) == min(min(limits), num) * per_prompt
    for short, whole in zip(cut_chunks(fakes.prompts(num), sweep, limit=limits[0]), full, strict=False):
        assert short.all_samples == whole.all_samples
        assert short.index == whole.index


def ids(chunks: Sequence[plans.Chunk]) -> list[str]:
    return [sample.sample_id for chunk in chunks for sample in chunk.samples]


def keys(plan: Plan) -> list[str]:
    return [cell.key for cell in plan.cells]


def test_what_does_not_change_a_key() -> None:
    base = build_plan(toy_sweep())
    same = build_plan(toy_sweep(max_failed=3, max_cells=9, bench={"prompts": 2}), limit=3)
    assert keys(same) == keys(base)
    assert same.sweep_key == base.sweep_key


@pytest.mark.parametrize(
    "changes",
    [
        {"base_seed": 1},
        {"images_per_prompt": 2},
        {"batch_size": 4},
        {"dtype": "float64"},
        {"device": "cuda"},
        {"target": "fake-b"},
        {"chunk_prompts": 5},
    ],
)
def test_what_changes_every_key(changes: dict[str, object]) -> None:
    base, other = build_plan(toy_sweep()), build_plan(toy_sweep(**changes))
    assert not set(keys(base)) & set(keys(other))
    assert base.sweep_key != other.sweep_key


def test_weights_and_prompts_change_keys() -> None:
    sweep = toy_sweep()
    base = cell_config(sweep, "fake-a", "w", AR(), "p")
    for other in (cell_config(sweep, "fake-a", "w2", AR(), "p"), cell_config(sweep, "fake-a", "w", AR(), "p2")):
        assert key_of(other) != key_of(base)


def test_defaults_are_left_out_of_keys() -> None:
    sweep = toy_sweep(chunk_prompts=64)
    config = cell_config(sweep, "fake-a", "w", MuLoSD(tau=0.1, radius=2), "p")
    assert config["knobs"] == {"radius": 2}
    assert "chunk_prompts" not in config
    assert "evaluators" not in config


def test_evaluators_change_the_sweep_only() -> None:
    base, other = build_plan(toy_sweep()), build_plan(toy_sweep(evaluators=[]))
    assert keys(base) == keys(other)
    assert base.sweep_key != other.sweep_key


def test_describe() -> None:
    plan = build_plan(toy_sweep(bench={"prompts": 2, "batches": [1, 4]}), limit=5)
    text = describe(plan, {plan.cells[0].key: 4, plan.cells[1].key: 99})
    assert "3 cells × 5 images in 2 chunks = 15 images" in text
    assert "the first 5 used" in text
    assert "bench: 2 prompts after 1 for warm-up, in batches of 1, 4" in text
    assert f"{plan.cells[0].key}  fake-a ar  4/5 cached" in text
    assert f"{plan.cells[1].key}  fake-a mulosd pool_k=2 tau=0.05  5/5 cached" in text
    assert "cached" not in describe(plan)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_positive(limit: int) -> None:
    with pytest.raises(ConfigError, match="--limit"):
        build_plan(toy_sweep(), limit=limit)


def test_prompt_ids_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "load_prompt_set", lambda spec: ([*fakes.prompts(2), fakes.prompts(1)[0]], "p"))
    with pytest.raises(ConfigError, match="occurs twice"):
        build_plan(toy_sweep())
    monkeypatch.setattr(plans, "load_prompt_set", lambda spec: ([], "p"))
    with pytest.raises(ConfigError, match="prompt set is empty"):
        build_plan(toy_sweep())


@pytest.mark.parametrize(("knob", "words"), [("radius", "exceeds the 4 x 4 grid"), ("pool_k", "exceeds the 64 codes")])
def test_knobs_that_no_target_can_serve_are_refused_before_weights_load(knob: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_plan(toy_sweep(methods=[{"method": "mulosd", "set": {knob: 65}}]))


def test_grids_of_one_number_are_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "load_card", lambda target: replace(fakes.FakeCard(target), grid=7))
    assert build_plan(toy_sweep()).cells[0].grid == (7, 7)


@pytest.mark.parametrize(
    ("method", "preset", "expected"),
    [
        (AR(), {}, False),
        (AR(temperature=0.0), {}, True),
        (AR(top_k=1), {}, True),
        (AR(temperature=0.1, top_k=2), {}, False),
        (AR(), {"top_k": 1}, True),
        (AR(temperature=1.0), {"temperature": 0.0}, False),
        (DraftOnly(temperature=0.0, draft_temperature=1.0), {}, False),  # the target draws nothing
        (DraftOnly(temperature=0.0), {}, True),  # which the drafter takes over
        (MuLoSD(draft_top_k=1), {}, True),
        (MuLoSD(), {}, False),
    ],
    ids=repr,
)
def test_only_greedy_cells_carry_the_rule_in_their_key(
    method: SamplerKnobs, preset: dict[str, float], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their images once depended on the seed; every other key stays what it was."""
    card = fakes.FakeCard("fake-a")
    monkeypatch.setattr(fakes, "load_card", lambda target: replace(card, sampler={**card.sampler, **preset}))
    (cell,) = build_plan(replace(toy_sweep(), methods=(method,))).cells
    assert cell.config.get("greedy") == ("lowest id" if expected else None)
    plain = cell_config(toy_sweep(), "fake-a", "weights-1", method, str(cell.config["prompts"]))
    assert (cell.key == key_of(plain)) == (not expected)
