"""Contact sheet, animation and plot show what they were given."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dashboards.animation import draw_frames, save_animation
from dashboards.drawing import STATUS_COLOURS, font, status_picture, wrap
from dashboards.gallery import contact_sheet, save_contact_sheet
from dashboards.plots import save_quality_plot, series_of
from dashboards.regions import REGIONS, CellRegions, save_region_maps
from dashboards.render import to_markdown
from dashboards.rows import CellRow, Picture
from dashboards.table import Comparison, Table, build_table
from mulosd.errors import DataError, EnvironmentProblem
from mulosd.types import STATUS_ACCEPTED, STATUS_EXPANDED, STATUS_REJECTED, STATUS_SAMPLED, Estimate

RED = np.full((32, 32, 3), (250, 10, 20), np.uint8)


def shot(sample: str, status: int = STATUS_SAMPLED) -> Picture:
    return Picture(sample, f"prompt of {sample}", RED, np.full((4, 4), status, np.uint8), 16)


def colours_of(image: Image.Image) -> set[tuple[int, ...]]:
    return {tuple(int(v) for v in colour) for colour in np.unique(np.asarray(image).reshape(-1, 3), axis=0)}


def test_sheet_holds_images_maps_and_legend() -> None:
    sheet = contact_sheet({"ar": [shot("s/0/0")], "mulosd tau=0.1": [shot("s/0/0", STATUS_REJECTED)]}, title="t")
    assert (250, 10, 20) in colours_of(sheet)
    assert STATUS_COLOURS[STATUS_REJECTED] in colours_of(sheet)
    assert STATUS_COLOURS[STATUS_EXPANDED] not in colours_of(sheet)


def test_sheet_aligns_columns_by_sample() -> None:
    """A column that lacks a sample gets an empty frame, and the others keep their rows."""
    full = contact_sheet({"a": [shot("s/0/0"), shot("s/1/0")], "b": [shot("s/0/0"), shot("s/1/0")]})
    gap = contact_sheet({"a": [shot("s/0/0"), shot("s/1/0")], "b": [shot("s/1/0")]})
    assert gap.size == full.size
    half = full.size[1] // 2
    right = slice(full.size[0] // 2 + 60, None)
    assert np.array_equal(np.asarray(gap)[half + 40 :, right], np.asarray(full)[half + 40 :, right])
    assert not np.array_equal(np.asarray(gap)[:half, right], np.asarray(full)[:half, right])


def test_empty_sheet_is_refused() -> None:
    with pytest.raises(DataError, match="no images"):
        contact_sheet({"ar": []})


def test_sheet_is_published_whole(tmp_path: Path) -> None:
    path = save_contact_sheet(tmp_path / "a" / "sheet.png", {"ar": [shot("s/0/0")]})
    with Image.open(path) as image:
        assert image.format == "PNG"
    assert [p.name for p in path.parent.iterdir()] == ["sheet.png"]


def test_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        save_contact_sheet(tmp_path, {"ar": [shot("s/0/0")]})
    assert list(tmp_path.parent.glob(".*.tmp")) == []


def test_status_picture_orients_rows_down() -> None:
    status = np.full((4, 4), STATUS_ACCEPTED, np.uint8)
    status[0, 3] = STATUS_REJECTED
    image = np.asarray(status_picture(status, 64))
    assert tuple(image[8, 56]) == STATUS_COLOURS[STATUS_REJECTED]
    assert tuple(image[56, 8]) == STATUS_COLOURS[STATUS_ACCEPTED]


def test_unknown_status_value_is_a_bug() -> None:
    with pytest.raises(ValueError, match=r"\[9\]"):
        status_picture(np.full((2, 2), 9, np.uint8), 32)


def test_wrap_stays_inside_and_marks_what_it_cuts() -> None:
    face = font(12)
    lines = wrap("one two three four five six " + "x" * 80, 60, face, 3)
    assert len(lines) == 3
    assert all(face.getlength(line) <= 60 for line in lines)
    assert lines[-1].endswith("…")


def frames() -> list[np.ndarray]:
    steps = [np.full((4, 4), -1, np.int32)]
    for i in range(4):
        steps.append(steps[-1].copy())
        steps[-1][i] = i
    return [*steps, steps[-1]]


def test_animation_drops_repeats_and_keeps_the_end(tmp_path: Path) -> None:
    path = save_animation(tmp_path / "a.gif", frames(), lambda _: RED, title="t", side=64)
    with Image.open(path) as gif:
        assert gif.n_frames == 5
        gif.seek(4)
        last = np.asarray(gif.convert("RGB"))
    assert (np.abs(last[60, 48].astype(int) - (250, 10, 20)) < 12).all()


def test_animation_thins_to_the_most_it_may_show() -> None:
    assert len(draw_frames(frames(), lambda _: RED, side=64, max_frames=3)) == 3


def test_animation_gets_frames_as_they_are() -> None:
    seen: list[np.ndarray] = []
    draw_frames(frames(), lambda tokens: seen.append(tokens) or RED, side=64)
    assert (seen[0] == -1).all()
    assert (seen[-1] >= 0).all()


def test_animation_without_frames_is_refused() -> None:
    with pytest.raises(DataError, match="frames=True"):
        draw_frames([], lambda _: RED)


def plotted(*cells: CellRow) -> Table:
    comparisons = {row.cell_key: Comparison({"forwards": Estimate(16.0 + i, None, 4)}) for i, row in enumerate(cells)}
    return build_table(cells, comparisons)


def cell(method: str, **knobs: object) -> CellRow:
    scores = {name: {"value": 0.5, "interval": [0.4, 0.6], "n": 4} for name in ("geneval/overall", "detail/accuracy")}
    return CellRow(f"{method}{knobs}", "tiny", method, knobs, 16, scores)


def test_plot_needs_a_point(tmp_path: Path) -> None:
    rows = (cell("ar"), cell("mulosd", tau=0.1))
    path = save_quality_plot(tmp_path / "q.png", plotted(*rows))
    with Image.open(path) as image:
        assert image.size[0] > 400
    with pytest.raises(DataError, match="forwards"):
        save_quality_plot(tmp_path / "r.png", build_table(rows, {}))
    assert not (tmp_path / "r.png").exists()


def test_plot_has_a_panel_per_target_and_quality(tmp_path: Path) -> None:
    one = save_quality_plot(tmp_path / "one.png", plotted(cell("ar")))
    other = replace(cell("ar"), cell_key="other", target="tiny-high")
    two = save_quality_plot(tmp_path / "two.png", plotted(cell("ar"), other))
    with Image.open(one) as small, Image.open(two) as large:
        assert large.size[0] == 2 * small.size[0]


DEFAULTS = {"mulosd": {"tau": 0.1, "rejection": "expand", "resampled_fraction": None, "radius": 1}}


def series(*cells: CellRow) -> dict[str, tuple[list[str], bool]]:
    found = series_of(plotted(*cells).rows, DEFAULTS)
    return {name: ([point.label for point in one.points], one.is_joined) for name, one in found.items()}


def test_points_of_one_number_are_joined_and_say_their_defaults() -> None:
    assert series(cell("ar"), cell("mulosd", radius=0), cell("mulosd")) == {
        "ar": ([""], True),
        "mulosd": (["radius=0", "radius=1"], True),
    }


def test_words_split_a_series_only_beside_numbers() -> None:
    """A line between two policies would mean nothing; policies alone are points of one series."""
    local, raster = cell("mulosd", rejection="local"), cell("mulosd", rejection="raster-resample", tau=0.5)
    assert series(local, cell("mulosd")) == {"mulosd": (["rejection=local", "rejection=expand"], False)}
    assert series(cell("mulosd", radius=0), raster) == {
        "mulosd rejection=expand": ([""], True),
        "mulosd rejection=raster-resample": ([""], True),
    }
    both = series(cell("mulosd", radius=0), cell("mulosd"), raster)
    assert both["mulosd rejection=expand"] == (["radius=0", "radius=1"], True)


def test_a_number_that_only_some_rows_have_splits_like_a_word() -> None:
    rows = [cell("mulosd", resampled_fraction=f, radius=r) for f in (None, 0.5) for r in (0, 2)]
    assert series(*rows) == {
        "mulosd": (["radius=0", "radius=2"], True),
        "mulosd resampled_fraction=0.5": (["radius=0", "radius=2"], True),
    }


def test_a_file_is_named_in_short_wherever_it_is_shown() -> None:
    nets = [f"/models/{name}.pth#sha256:{digit * 64}" for name, digit in (("a", "1"), ("b", "2"))]
    rows = [cell("mulosd", upsampler="sr", sr_model=net) for net in nets]
    assert rows[0].label == "mulosd sr_model=a.pth@11111111 upsampler=sr"
    assert series(*rows) == {"mulosd": (["sr_model=a.pth@11111111", "sr_model=b.pth@22222222"], False)}


def test_dollar_signs_start_no_formula(tmp_path: Path) -> None:
    """Two of them start one for matplotlib, which raises where it cannot read it."""
    priced = [cell("mulosd", sr_model=name) for name in (r"$\frac$.pth", "b$$.pth")]
    rows = [replace(row, target=r"$\x$") for row in (cell("ar"), *priced)]
    table = replace(plotted(*rows), title=r"costs $1 \and $")
    assert save_quality_plot(tmp_path / "q.png", table).exists()
    rates = {name: Estimate(0.5, (0.4, 0.6), 4) for name in REGIONS}
    regions = CellRegions(r"mulosd a=$\x$", r"$\x$", 4, np.eye(4), np.eye(4), dict.fromkeys(REGIONS, 0.2), rates, rates)
    assert save_region_maps(tmp_path / "r.png", [regions], title=r"$\y$").exists()
    assert r"b\$\$.pth" in to_markdown(table)
