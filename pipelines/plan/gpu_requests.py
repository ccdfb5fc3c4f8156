"""GPUs per Ray actor of a target: `resources` of a sweep file, and `--num-gpus` over it. Part of no key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mulosd.errors import ConfigError, unknown_name

DEFAULT = ""  # stands for the targets without a number of their own
MOST = 1024.0


def gpu_number(value: Any, where: str) -> float:
    """GPUs that Ray can book for one actor: a part of one, or whole ones; ConfigError naming `where` otherwise."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < MOST or (value > 1 and value != int(value)):
        raise ConfigError(f"{where} = {value!r} is not allowed; give a fraction of one GPU or a whole number of GPUs.")
    return float(value)


def parse_num_gpus(texts: Iterable[str]) -> dict[str, float]:
    """`2` and `tiny-high=0.5` -> {"": 2.0, "tiny-high": 0.5}; ConfigError for anything else."""
    found: dict[str, float] = {}
    for text in texts:
        target, sign, number = (part.strip() for part in text.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = None
        if value is None or bool(target) != bool(sign):
            raise ConfigError(f"--num-gpus {text}: give a number for all targets, or TARGET=NUMBER for one of them.")
        found[target] = gpu_number(value, f"--num-gpus {target}".strip())
    return found


def override_gpus(given: Mapping[str, float], asked: Mapping[str, float], targets: Sequence[str]) -> dict[str, float]:
    """What the command line gives over what the sweep asks; a number for all leaves nothing of the sweep's.

    ConfigError for a target that the sweep has not.
    """
    for target in given:
        if target != DEFAULT and target not in targets:
            raise unknown_name("target", target, targets, "--num-gpus")
    return dict(given) if DEFAULT in given else {**asked, **given}
