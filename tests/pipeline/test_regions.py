"""Rejection by region of the draft: what is an object, whose draft it is, and the sums that must agree."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from dashboards.regions import REGIONS, regions_markdown
from mulosd.errors import DataError
from mulosd.scenes.render import render
from mulosd.scenes.world import Scene, SceneObject
from pipelines.cli.main import cli
from pipelines.compare.regions import regions_of, sweep_regions
from pipelines.plan.sweep import parse_sweep
from pipelines.run.driver import run_sweep
from pipelines.store.layout import Store
from pipelines.store.results import collect
from tests.fakes import toy_sweep

OBJECT, EDGE, BACKGROUND = range(3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two scenes on tiny-mid by two MuLo-SD cells, beside the drafts of one of the up-samplers only."""
    sweep = {
        "name": "regions",
        "target": "tiny-mid",
        "prompts": {"name": "scenes", "count": 2},
        "batch_size": 2,
        "methods": [
            {"method": "draft-only"},
            {"method": "mulosd", "grid": {"upsampler": ["bicubic", "repeat"]}},
        ],
        "evaluators": ["speed"],
    }
    folder = tmp_path_factory.mktemp("regions")
    run_sweep(parse_sweep(sweep), out=folder)
    return Store.existing(folder)


def key_of(store: Store, label: str) -> str:
    return next(row.cell_key for row in collect(store) if row.label == label)


def test_regions_of_a_square_follow_its_outline() -> None:
    """A square from cell 6 to cell 25 of 32: its outermost cells and the ones around them are its edge."""
    scene = Scene("colors", "white", (SceneObject("square", "red", None, 16, 16, 10),), "a photo of a red square")
    expected = np.full((32, 32), BACKGROUND)
    expected[5:27, 5:27] = EDGE
    expected[7:25, 7:25] = OBJECT
    found = regions_of(render(scene, 128), (32, 32))
    differing = np.argwhere(found != expected)
    assert all({int(row), int(column)} <= {7, 24} for row, column in differing)  # a corner may be rounded off
    assert (regions_of(render(scene, 64), (16, 16)) == OBJECT).sum() == 8 * 8


def test_a_picture_without_objects_is_background() -> None:
    assert (regions_of(np.full((64, 64, 3), 236, np.uint8), (16, 16)) == BACKGROUND).all()


def test_the_regions_add_up_to_the_counters(store: Store) -> None:
    (cell,) = sweep_regions(store, cells=[key_of(store, "mulosd")])
    counters = next(row for row in collect(store) if row.label == "mulosd").counters
    for name, maps in (("rejected", cell.rejected), ("resampled", cell.resampled)):
        assert maps.sum() * cell.n == pytest.approx(sum(counters[name].values()))
    assert 0 < cell.rejected.mean() < cell.resampled.mean() < 1
    assert sum(cell.shares.values()) == pytest.approx(1)
    known = {name: rate for name, rate in cell.resampled_by_region.items() if rate.value is not None}
    assert known
    total = sum((rate.value or 0.0) * cell.shares[name] for name, rate in known.items())
    assert total == pytest.approx(cell.resampled.mean())


def test_a_draft_of_other_knobs_is_no_draft_of_the_cell(store: Store) -> None:
    with pytest.raises(DataError, match=r"draft of mulosd upsampler=repeat is not in .*; add .* upsampler=repeat"):
        sweep_regions(store)


def test_what_has_no_regions_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not part of the sweep"):
        sweep_regions(store, cells=["nope"])
    with pytest.raises(DataError, match="no cell among those asked for verified a draft"):
        sweep_regions(store, cells=[key_of(store, "draft-only")])


def test_prompts_of_another_world_are_refused(tmp_path: Path) -> None:
    run_sweep(toy_sweep(), out=tmp_path)
    with pytest.raises(DataError, match="prompts must be of scenes or dpg_scenes"):
        sweep_regions(Store.existing(tmp_path))


def test_the_command_prints_a_row_per_cell_and_draws(store: Store, tmp_path: Path) -> None:
    key, picture = key_of(store, "mulosd"), tmp_path / "regions.png"
    result = CliRunner().invoke(cli, ["regions", str(store.root), "--cell", key, "--out", str(picture)])
    assert result.exit_code == 0, result.output
    assert regions_markdown(sweep_regions(store, cells=[key])) in result.output
    assert [line.split(" | ")[1] for line in result.output.splitlines() if line.startswith("| tiny-mid")] == ["mulosd"]
    assert all(f"rejected {name}" in result.output for name in REGIONS)
    with Image.open(picture) as image:
        assert image.size[1] > image.size[0] / 2
