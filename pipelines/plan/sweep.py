"""The sweep file: strict YAML -> a frozen `Sweep`. All errors at once, unknown keys with the nearest name.

Nothing is built or loaded here; the light lists of targets and evaluators are only asked for their names.
`--set key=value` overrides go into the mapping first, so that one schema checks both.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from dashboards.table import CONTROLS
from mulosd.errors import ConfigError, UserError, unknown_name
from mulosd.files.reading import read_file, reason_of
from mulosd.methods import METHODS, SamplerKnobs, check_given, configure
from mulosd.prompts import PROMPT_SETS
from pipelines.plan import knob_axes
from pipelines.plan.gpu_requests import DEFAULT, gpu_number

# Modules asked for names and built from; tests give their own.
FAMILIES = "mulosd.targets"
REGISTRY = "evaluators.registry"

CHUNK_PROMPTS = 64  # prompts per chunk file
DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class BenchSpec:
    """How latency is measured: `prompts` timed prompts after `warmup` untimed calls, for every method.

    batches: images per call; latency is measured at 1, throughput at the others.
    """

    prompts: int = 4
    warmup: int = 1
    batches: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: what to decode (targets × methods × prompts), how to score it, and where failures end it.

    num_gpus: GPUs per Ray actor by target id (see `pipelines.plan.gpu_requests`). ms_per_forward: stated milliseconds
    of one forward of a whole batch, and max_hours: device hours allowed, both for `pipelines.plan.budget`. These change
    no key.
    """

    name: str
    targets: tuple[str, ...]
    prompts: Mapping[str, Any]
    methods: tuple[SamplerKnobs, ...]
    images_per_prompt: int = 1
    base_seed: int = 0
    batch_size: int = 32
    chunk_prompts: int = CHUNK_PROMPTS
    device: str = "cpu"
    dtype: str = "float32"
    evaluators: tuple[str, ...] = ()
    bench: BenchSpec | None = None
    num_gpus: Mapping[str, float] = field(default_factory=dict)
    max_failed: int = 0
    max_cells: int | None = None
    ms_per_forward: float | None = None
    max_hours: float | None = None
    families: str = field(default=FAMILIES, repr=False)
    registry: str = field(default=REGISTRY, repr=False)


def load_sweep(path: str | Path, overrides: Sequence[str] = (), **modules: str) -> Sweep:
    """The sweep in the YAML file `path` with `--set` overrides applied; ConfigError in one text when anything is wrong.

    modules: `families=` and `registry=` name other modules that hold targets and evaluators.
    """
    return parse_sweep(read_raw(Path(path), overrides), where=str(path), **modules)


def read_raw(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping in the YAML file `path` with `--set` overrides applied, not yet checked."""
    from pipelines.plan.yaml_text import parse_yaml

    try:
        text = read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: the sweep file cannot be read ({reason_of(error)}); give the path of a YAML file."
        ) from error
    try:
        raw = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: this is not valid YAML ({error}); correct the file.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a sweep is a mapping of settings (name, target, prompts, methods, ...).")
    for override in overrides:
        key, value = parse_override(override)
        apply_override(raw, key, value)
    return raw


def parse_override(text: str) -> tuple[str, Any]:
    """`methods.1.grid.tau=[0.1, 0.2]` -> (dotted key, YAML value)."""
    from pipelines.plan.yaml_text import parse_yaml

    key, sign, value = text.partition("=")
    if not sign or not all(key.strip().split(".")):
        raise ConfigError(f"--set {text}: an override has the form key=value, with dots between nested keys.")
    try:
        return key.strip(), parse_yaml(value)
    except ValueError as error:
        raise ConfigError(
            f"--set {text[:80]}: the value is not valid YAML ({error}); quote it like a YAML value."
        ) from error


def apply_override(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in the raw mapping; list items are addressed by index. New keys are left to the schema."""
    node: Any = raw
    *parents, last = key.split(".")
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[_index(node, part, key)]
    if isinstance(node, dict):
        node[last] = value
    else:
        node[_index(node, last, key)] = value


def parse_sweep(
    raw: Mapping[str, Any], *, where: str = "sweep", families: str = FAMILIES, registry: str = REGISTRY
) -> Sweep:
    """The checked sweep of a raw mapping; one ConfigError lists everything that is wrong with it."""
    check = _Check(where)
    check.keys(raw, _KEYS, "sweep key")
    for required in ("name", "target", "prompts", "methods"):
        if required not in raw:
            check.add(f"{required} is missing; every sweep needs name, target, prompts and methods.")
    values: dict[str, Any] = {"name": check.name(raw.get("name", "unnamed"))}
    values["targets"] = check.names(raw.get("target", []), "target", lambda: import_module(families).target_ids())
    values["evaluators"] = check.names(
        raw.get("evaluators", []), "evaluator", lambda: import_module(registry).EVALUATORS
    )
    values["prompts"] = check.prompts(raw.get("prompts", {}))
    values["methods"] = check.methods(raw.get("methods", []))
    if raw.get("only") is not None:
        values["methods"] = check.only(raw["only"], values["methods"])
    for key, low in _INTEGERS.items():
        if key in raw:
            values[key] = check.integer(raw[key], key, low)
    if raw.get("max_cells") is not None:
        values["max_cells"] = check.integer(raw["max_cells"], "max_cells", 1)
    for key in _BUDGETS:
        if raw.get(key) is not None:
            values[key] = check.positive(raw[key], key)
    if raw.get("max_hours") is not None and raw.get("ms_per_forward") is None:
        check.add("max_hours needs ms_per_forward, from which hours are estimated; state it too.")
    for key, allowed in (("device", DEVICES), ("dtype", DTYPES)):
        if key in raw:
            values[key] = check.choice(raw[key], key, allowed)
    if raw.get("bench") is not None:
        values["bench"] = check.bench(raw["bench"])
    if raw.get("resources") is not None:
        values["num_gpus"] = check.resources(raw["resources"], values["targets"])
    check.finish()
    sweep = Sweep(**values, families=families, registry=registry)
    cells = len(sweep.targets) * len(sweep.methods)
    if sweep.max_cells is not None and cells > sweep.max_cells:
        raise ConfigError(
            f"{where}: the sweep has {cells} cells, max_cells allows {sweep.max_cells}; thin out a grid or raise it."
        )
    return sweep


_INTEGERS = {"images_per_prompt": 1, "base_seed": 0, "batch_size": 1, "chunk_prompts": 1, "max_failed": 0}
_BUDGETS = ("ms_per_forward", "max_hours")
_OTHER_KEYS = (
    "name",
    "target",
    "prompts",
    "methods",
    "only",
    "evaluators",
    "bench",
    "resources",
    "max_cells",
    "device",
    "dtype",
)
_KEYS = (*_OTHER_KEYS, *_INTEGERS, *_BUDGETS)


class _Check:
    """Collects errors, so that one run of the parser reports all of them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.errors: list[str] = []

    def add(self, text: str) -> None:
        self.errors.append(text)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """call(), or None with its UserError noted."""
        try:
            return call()
        except UserError as error:
            self.add(str(error))
            return None

    def keys(self, raw: Mapping[str, Any], known: Iterable[str], kind: str, place: str = "") -> None:
        for key in raw:
            if key not in known:
                self.add(str(unknown_name(kind, str(key), known, place)))

    def name(self, value: Any) -> str:
        if not isinstance(value, str) or not value or not value.replace("-", "").replace("_", "").isalnum():
            self.add(f"name = {value!r} is not allowed; use letters, digits, - and _.")
        return str(value)

    def names(
        self,
        value: Any,
        kind: str,
        list_known: Callable[[], Iterable[str]],
        planned: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self.add(f"{kind} = {value!r} is not allowed; give a name or a list of names.")
            return ()
        known = self.attempt(list_known) if items else ()
        for item in items if known is not None else ():
            if item not in known:
                self.add(str(unknown_name(kind, item, known, planned=planned)))
        if len(set(items)) < len(items):
            self.add(f"{kind} names one item twice ({', '.join(items)}); name each once.")
        return tuple(items)

    def prompts(self, value: Any) -> Mapping[str, Any]:
        """Name and keys of the prompt set; its values and files are read by the plan."""
        if not isinstance(value, dict) or not value:
            self.add(f"prompts = {value!r} is not allowed; give a mapping such as {{name: scenes, count: 64}}.")
            return {}
        if isinstance(name := value.get("name"), str):
            self.attempt(partial(self.prompt_keys, name, value))
        return value

    def prompt_keys(self, name: str, value: Mapping[str, Any]) -> None:
        if name not in PROMPT_SETS:
            raise unknown_name("prompt set", name, PROMPT_SETS, "prompts")
        self.keys(value, ("name", *PROMPT_SETS[name].KEYS), "key", f"prompts {name}")

    def integer(self, value: Any, key: str, low: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
            self.add(f"{key} = {value!r} is not allowed; it is an integer from {low} on.")
            return low
        return value

    def positive(self, value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.add(f"{key} = {value!r} is not allowed; it is a finite number above 0.")
            return 1.0
        return float(value)

    def choice(self, value: Any, key: str, allowed: Sequence[str]) -> str:
        if value not in allowed:
            self.add(str(unknown_name(key, str(value), allowed)))
        return str(value)

    def bench(self, value: Any) -> BenchSpec:
        if not isinstance(value, dict):
            self.add(f"bench = {value!r} is not allowed; give a mapping such as {{prompts: 4, warmup: 1}}.")
            return BenchSpec()
        self.keys(value, ("prompts", "warmup", "batches"), "bench key", "bench")
        lows = {"prompts": 1, "warmup": 0}
        counts = {k: self.integer(value[k], f"bench.{k}", low) for k, low in lows.items() if k in value}
        return BenchSpec(**counts, batches=self.batches(value.get("batches", [1])))

    def batches(self, value: Any) -> tuple[int, ...]:
        is_list = isinstance(value, list) and all(type(size) is int for size in value)
        if not is_list or value[:1] != [1] or value != sorted(set(value)):
            self.add(f"bench.batches = {value!r} is not allowed; give growing sizes from 1 on, such as [1, 4, 16].")
            return (1,)
        return tuple(value)

    def resources(self, value: Any, targets: Sequence[str]) -> dict[str, float]:
        """GPUs per Ray actor: one number for all targets, or a mapping from targets to numbers."""
        if not isinstance(value, dict):
            self.add(f"resources = {value!r} is not allowed; give a mapping such as {{num_gpus: 0.5}}.")
            return {}
        self.keys(value, ("num_gpus",), "key", "resources")
        asked = value.get("num_gpus", {})
        if isinstance(asked, dict):
            self.keys(asked, targets, "target", "resources.num_gpus")
            named = {f"resources.num_gpus.{target}": target for target in asked}
        else:
            named, asked = {"resources.num_gpus": DEFAULT}, {DEFAULT: asked}
        found = {target: self.attempt(partial(gpu_number, asked[target], where)) for where, target in named.items()}
        return {target: number for target, number in found.items() if number is not None}

    def methods(self, value: Any) -> tuple[SamplerKnobs, ...]:
        if not isinstance(value, list) or not value:
            self.add(f"methods = {value!r} is not allowed; give a list such as [{{method: ar}}].")
            return ()
        found: dict[SamplerKnobs, None] = {}
        for index, item in enumerate(value):
            for method in self.method(item, f"methods[{index}]"):
                if method in found:
                    self.add(f"methods[{index}] repeats the configuration {method}; name each once.")
                found[method] = None
        return tuple(found)

    def only(self, value: Any, methods: Sequence[SamplerKnobs]) -> tuple[SamplerKnobs, ...]:
        """The configurations of the methods that `value` names, beside those of the control rows."""
        named = self.names(value, "method of this sweep", lambda: {method.name for method in methods}, METHODS.planned)
        return tuple(method for method in methods if method.name in (*CONTROLS, *named))

    def method(self, item: Any, place: str) -> list[SamplerKnobs]:
        """The configurations of one entry (see `knob_axes`)."""
        if not isinstance(item, dict) or not isinstance(item.get("method"), str):
            self.add(f"{place} = {item!r} is not allowed; give a mapping with the key method.")
            return []
        self.keys(item, knob_axes.KEYS, "key", place)
        name = item["method"]
        if name not in METHODS:
            self.add(str(unknown_name("method", name, METHODS, place)))
            return []
        before = len(self.errors)
        settings = knob_axes.expand(item, place, self.add)
        built = [self.attempt(partial(configure, name, knobs, where=place)) for knobs in settings]
        given = [(method, knobs) for method, knobs in zip(built, settings, strict=True) if method is not None]
        self.attempt(partial(check_given, given))
        self.errors[before:] = list(dict.fromkeys(self.errors[before:]))
        return [method for method in built if method is not None]

    def finish(self) -> None:
        if self.errors:
            prefixed = [e if e.startswith(self.where) else f"{self.where}: {e}" for e in self.errors]
            raise ConfigError("\n".join(prefixed))


def _index(node: Any, part: str, key: str) -> int:
    if not isinstance(node, list) or not part.isdecimal() or int(part) >= len(node):
        size = f"a list of {len(node)} items" if isinstance(node, list) else f"the value {node!r}"
        raise ConfigError(f"--set {key}: {part!r} does not exist in {size}; use the index of an existing item.")
    return int(part)
