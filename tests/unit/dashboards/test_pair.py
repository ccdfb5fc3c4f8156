"""A comparison on the page: every number with its sign, what is missing with its reason."""

import json
from dataclasses import replace

from dashboards.pair import Change, Pair, PairMetric, Setting, pair_json, pair_markdown
from mulosd.types import Estimate

SCORED = PairMetric(
    "geneval/overall", "higher", "share", 0.75, 0.5, Estimate(0.25, (0.1, 0.4), 40, 40, 2),
    wins=(12, 26, 2), win_rate=0.625, test="McNemar, exact (12 and 2)", p_value=0.0129, judged="A better",
)  # fmt: skip
NULL = PairMetric("fd_effnet", "lower", "", 12.345, 99.5, Estimate(None, reason="no values per sample"))
PAIR = Pair(
    "tiny-mid mulosd tau=0.2", "tiny-mid ar", "aaaa", "bbbb", (SCORED, NULL),
    (Setting("method", "mulosd", "ar"),), (), "geneval/overall", (Change("s/1/0", "a | b", 0.0, 1.0),), ("Beware.",),
)  # fmt: skip


def test_markdown() -> None:
    text = pair_markdown(PAIR)
    assert "**A: tiny-mid mulosd tau=0.2** (`aaaa`)" in text
    row = "| geneval/overall ↑ | 0.750 | 0.500 | +0.250 | [+0.100, +0.400] | 40 | 62% (12:26:2) | 0.013 | A better |"
    assert row in text
    assert "| fd_effnet ↓ | 12.35 | 99.50 | – | – | – | – | – | – |" in text
    assert "- fd_effnet: no values per sample." in text
    assert "2 samples are scored on one side only" in text
    assert "- Beware." in text
    assert "| method | mulosd | ar |" in text
    assert "| a \\| b (`s/1/0`) | 0.000 | 1.000 | −1.000 |" in text


def test_numbers_of_prompts_and_images() -> None:
    def counted(n: int, prompts: int) -> str:
        one = replace(SCORED, difference=Estimate(0.1, None, n, prompts))
        return pair_markdown(replace(PAIR, metrics=(one,))).splitlines()[5].split(" | ")[5]

    assert [counted(40, 40), counted(40, 10), counted(41, 10)] == ["40", "10 × 4", "41 in 10"]


def test_small_p_values_and_nothing_to_say() -> None:
    tiny = replace(PAIR, metrics=(replace(SCORED, p_value=1e-9),), settings=(), changes=())
    text = pair_markdown(tiny)
    assert "<0.001" in text
    assert "What differs in the configuration: nothing." in text
    assert "No prompt changes in geneval/overall." in text
    assert "Largest" not in pair_markdown(replace(tiny, change_metric=""))


def test_json_keeps_full_precision() -> None:
    value = 0.1 + 0.2
    pair = replace(PAIR, metrics=(replace(SCORED, a=value),))
    content = json.loads(pair_json(pair))
    assert content["metrics"][0]["a"] == value
    assert content["metrics"][0]["difference"] == {"value": 0.25, "interval": [0.1, 0.4], "n": 40, "reason": ""}
    assert [content["metrics"][0][key] for key in ("n_prompts", "n_unpaired")] == [40, 2]
