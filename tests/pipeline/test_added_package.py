"""A package from outside adds a method, an up-sampler, a prompt set and an evaluator; no file here is edited."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

from mulosd.methods import Doc, SamplerKnobs


@dataclass(frozen=True, kw_only=True)
class Backwards(SamplerKnobs):
    """AR that counts its steps twice."""

    name: ClassVar[str] = "backwards"
    decoder: ClassVar[str] = "toy_package.decoder:decode"

    steps: Annotated[int, Doc("steps for each token", low=1)] = 2
'''
DECODER = """
from mulosd.decoding.ar import decode_ar
from mulosd.upsample.token import Repeat


def decode(job, method):
    result = decode_ar(job, method)
    for stats in result.stats:
        stats.forwards_resample *= method.steps
    return result


def upsampler(setting):
    return Repeat(setting.ratio)
"""
PROMPTS = """
from mulosd.types import Prompt

KEYS = ("word",)


def load(spec):
    return [Prompt("toyset", "a", f"a red {spec['word']}")]
"""
SCORE = """
from evaluators.state import SampleState
from evaluators.types import Metric


class Rows:
    name, version, state = "rows", "1", SampleState

    def protocol(self):
        return {}

    def prepare(self):
        pass

    def score(self, rows):
        return SampleState({row["sample_id"]: {"rows": 1} for row in rows})

    def merge(self, a, b):
        return a.merge(b)

    def finalize(self, state):
        return [Metric("rows", float(len(state.records)), "none", "", len(state.records), 0, self.version)]
"""
ENTRIES = """
[mulosd.methods]
backwards = toy_package.method:Backwards
[mulosd.upsamplers]
copy = toy_package.decoder:upsampler
[mulosd.prompts]
toyset = toy_package.prompts
[mulosd.evaluators]
rows = toy_package.score:Rows
"""
SWEEP = """
name: added
target: tiny-mid
prompts: {name: toyset, word: circle}
methods: [{method: backwards, set: {steps: 3}}, {method: draft-only, set: {upsampler: copy}}]
evaluators: [rows]
batch_size: 1
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on sys.path as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    files = {"__init__": "", "method": SOURCE, "decoder": DECODER, "prompts": PROMPTS, "score": SCORE}
    (folder / "toy_package").mkdir()
    for name, text in files.items():
        (folder / "toy_package" / f"{name}.py").write_text(text, encoding="utf-8")
    info = folder / "toy_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    (folder / "added.yaml").write_text(SWEEP, encoding="utf-8")
    return folder


def mulosd(package: Path, *commands: list[str]) -> list[str]:
    """What each command prints, run one after the other in one process that has the package."""
    code = "import sys; from click.testing import CliRunner; from pipelines.cli.main import cli\n" + "\n".join(
        f"done = CliRunner().invoke(cli, {words!r}); print(done.output, done.exception or '', '<end>')"
        for words in commands
    )
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("<end>")


def test_what_a_package_adds_is_used_everywhere(package: Path) -> None:
    sweep, store, png = str(package / "added.yaml"), str(package / "store"), str(package / "x.png")
    target = ["--target", "tiny-mid", "--prompt", "a red circle", "--method", "backwards", "--out", png]
    listed, page, plan, cost, explained, generated, ran, table = mulosd(
        package,
        ["methods"],
        ["methods", "backwards"],
        ["plan", sweep],
        ["plan", sweep, "--set", "ms_per_forward=1"],
        ["generate", *target, "--set", "steps=3", "--explain", "--dry-run"],
        ["generate", *target],
        ["run", sweep, "--out", store, "--no-track", "--quiet"],
        ["table", store],
    )[:8]
    assert "backwards   AR that counts its steps twice." in listed
    assert "steps = 2   [int from 1 on]\n    steps for each token" in page
    assert "backwards steps=3" in plan
    assert "draft-only upsampler=copy" in plan
    assert "without backwards, whose forward passes are not known in advance" in cost
    assert "steps              3" in explained
    assert "not known in advance: backwards has no formula; ar takes 256" in explained
    assert "x.png: 512 forwards for 256 tokens" in generated
    assert "decoded 2" in ran
    assert "| backwards steps=3 |" in table
    assert "768" in table
    assert len(list((package / "store").glob("cells/*/scores/rows-*/metrics.json"))) == 2
