"""What makes the tests the same on every machine, and that it is in force."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[2]
NUMBERS = """
import random
from evaluators.statistics.intervals import paired_difference
from evaluators.statistics.paired_tests import sign_flip_test
from pipelines.card.quality import advantage

draw = random.Random(0)
a, b = ({f"{task}/{i}/{j}": draw.random() for task in "xyz" for i in range(20) for j in range(2)} for _ in "ab")
tasks = {key: key[0] for key in set(a)}  # in the order of a set
print(paired_difference(a, b, strata=tasks), sign_flip_test(a, b, strata=tasks), advantage(a, b, tasks))
"""


def test_examples_are_the_same_everywhere_and_have_no_deadline() -> None:
    used = settings()
    assert (used.derandomize, used.database, used.deadline) == (True, None, None)


def test_numbers_do_not_depend_on_the_order_of_sets() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", NUMBERS], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(printed) == 1
    assert b"interval" in printed.pop()
