"""The verification bench: a true scene passes, random codes do not."""

import pytest
import torch
from click.testing import CliRunner

from bench.verification import main, patterned, pooled_masses
from mulosd.targets import load_target
from mulosd.training.gpt import scene_codes


def test_every_scene_names_a_pattern():
    assert all(any(o.pattern for o in scene.objects) for scene in patterned(5))


def test_the_true_scene_passes_where_random_codes_fail():
    loaded, scenes = load_target("tiny-mid"), patterned(2)
    true = scene_codes(loaded.vq, scenes, 64)
    noise = torch.randint(0, 1024, true.shape, generator=torch.Generator().manual_seed(0))
    rejected = [float((pooled_masses(loaded, scenes, codes, 4, 2.0) < 0.01).double().mean()) for codes in (true, noise)]
    assert rejected[0] < 0.1
    assert rejected[1] > 0.8


@pytest.mark.parametrize("upsampler", ["repeat", "bicubic"])
def test_the_command_prints_a_row_per_draft(upsampler):
    result = CliRunner().invoke(main, ["--target", "tiny-mid", "--count", "1", "--upsampler", upsampler])
    assert result.exit_code == 0, result.output
    assert [line.split(" | ")[0] for line in result.output.splitlines()[4:]] == [
        "| the scene itself",
        "| without patterns",
        f"| 32 px, {upsampler}",
    ]
