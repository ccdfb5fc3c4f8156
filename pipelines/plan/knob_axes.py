"""One entry of a sweep's `methods` as knob settings: fixed, gridded, linked, listed, or varied one at a time.

    set:  {radius: 1}                       fixed in every configuration
    grid: {tau: [0.1, 0.2], pool_k: [1, 4]} every combination (4)
    zip:  {tau: [0.1, 0.2], pool_k: [4, 8]} knobs that move together (2); a list of mappings gives several such groups
    list: [{tau: 0.1}, {tau: 0.2, radius: 0}]  configurations as they are (2)
    vary: {tau: [0.05, 0.2], radius: [0, 2]}   the default (what `set` fixes), then one knob at a time (1 + 4)

Keys that stand together are multiplied. A knob belongs to one key; only `vary` may name a knob of `set`, whose value is
then the default it varies around. Pure: nothing is built here.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from mulosd.methods import all_knobs

KEYS = ("method", "set", "grid", "zip", "list", "vary")
MAX_CONFIGURATIONS = 100_000  # of one entry; a slip in a grid ends here and not in the memory

Knobs = dict[str, Any]
Report = Callable[[str], None]


def expand(item: Mapping[str, Any], place: str, report: Report) -> list[Knobs]:
    """The knob settings of one entry, in order; [] after a problem, each reported as one sentence.

    item: an entry whose `method` is known. Knob names and values are left to `build_method`.
    """
    problems: list[str] = []
    fixed = item.get("set") or {}
    if not isinstance(fixed, dict):
        report(f"{place}: set, grid, zip and vary are mappings of knobs of {item['method']}.")
        return []
    axes: list[tuple[str, list[Knobs]]] = [
        *((f"grid.{knob}", [{knob: v} for v in values]) for knob, values in _lists(item, "grid", place, problems)),
        *_linked(item, place, problems),
        *_listed(item, place, problems),
        *_varied(item, fixed, place, problems),
    ]
    if not problems:
        problems += _overlaps(fixed, axes, place)
    count = math.prod(len(settings) for _, settings in axes)
    if count > MAX_CONFIGURATIONS:
        problems.append(f"{place} has {count} configurations, allowed are {MAX_CONFIGURATIONS}; thin out its grid.")
    for problem in problems:
        report(problem)
    if problems:
        return []
    return [_merged(fixed, chosen) for chosen in itertools.product(*(settings for _, settings in axes))]


def _merged(fixed: Knobs, chosen: tuple[Knobs, ...]) -> Knobs:
    whole = dict(fixed)
    for settings in chosen:
        whole |= settings
    return whole


def _lists(holder: Mapping[str, Any], key: str, place: str, problems: list[str]) -> list[tuple[str, list[Any]]]:
    """(knob, values) of a mapping of knobs to lists."""
    value = holder.get(key) or {}
    if not isinstance(value, dict):
        problems.append(f"{place}: set, grid, zip and vary are mappings of knobs of {holder['method']}.")
        return []
    good = [(knob, values) for knob, values in value.items() if isinstance(values, list) and values]
    for knob, values in value.items():
        if not isinstance(values, list) or not values:
            problems.append(f"{place}.{key}.{knob} = {values!r} is not allowed; give a list with at least one value.")
    return good


def _linked(item: Mapping[str, Any], place: str, problems: list[str]) -> list[tuple[str, list[Knobs]]]:
    value = item.get("zip") or []
    groups = value if isinstance(value, list) else [value]
    axes = []
    for index, group in enumerate(groups):
        name = f"zip[{index}]" if isinstance(value, list) else "zip"
        pairs = _lists({"zip": group, "method": item["method"]}, "zip", place, problems)
        sizes = {knob: len(values) for knob, values in pairs}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{knob} has {size}" for knob, size in sizes.items())
            problems.append(f"{place}.{name}: linked knobs need equally many values ({listed}); make the lists equal.")
        elif pairs:
            names = [knob for knob, _ in pairs]
            together = zip(*(values for _, values in pairs), strict=True)
            axes.append((name, [dict(zip(names, values, strict=True)) for values in together]))
    return axes


def _listed(item: Mapping[str, Any], place: str, problems: list[str]) -> list[tuple[str, list[Knobs]]]:
    value = item.get("list")
    if value is None:
        return []
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        problems.append(f"{place}.list = {value!r} is not allowed; give a list of mappings of knobs.")
        return []
    return [("list", value)]


def _varied(item: Mapping[str, Any], fixed: Knobs, place: str, problems: list[str]) -> list[tuple[str, list[Knobs]]]:
    """The default, then one knob at a time; the default is included once."""
    pairs = _lists(item, "vary", place, problems)
    if not pairs:
        return []
    default = all_knobs(item["method"], fixed)
    single = [{knob: value} for knob, values in pairs for value in values if value != default.get(knob, _NO_DEFAULT)]
    return [("vary", [{}, *single])]


_NO_DEFAULT = object()


def _overlaps(fixed: Knobs, axes: list[tuple[str, list[Knobs]]], place: str) -> list[str]:
    """A sentence per knob that two keys set."""
    seen = dict.fromkeys(fixed, "set")
    problems = []
    for name, settings in axes:
        key = name.partition(".")[0]
        for knob in dict.fromkeys(knob for one in settings for knob in one):
            if knob in seen and not (key == "vary" and seen[knob] == "set"):
                problems.append(f"{place}: {knob} stands in {seen[knob]} and in {key}; keep one of them.")
            seen[knob] = key
    return problems
