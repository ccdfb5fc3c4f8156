"""What the configurations of all methods share: the target's sampler, what a method needs, knobs that do nothing.

No torch here: plans are built, hashed and checked without loading a model. The decoders that act on
these values are in `mulosd.decoding`. A sampler knob left at None means "the preset of the target's card".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from mulosd.errors import ConfigError
from mulosd.families.card import Card
from mulosd.methods.cost import SAMPLER_KEYS, Forecast, Grids, Sampling, resolve_sampling
from mulosd.methods.knobs import Doc, declared_knobs
from mulosd.methods.upsamplers import NETWORK

NEUTRAL = (None, "none", "auto", -1)  # defaults that ask for nothing, so that they may stand beside anything


class Needs(NamedTuple):
    """What a decoder finds in its job beside the target model; a target that lacks it cannot run the method.

    drafter: a model of the draft grid ("optional": where the target has one), or a "head" on the target's features.
    upsampler: codes of the draft grid to codes of the target grid. neighbours: nearest codes of the codebook. features:
    the target's last hidden states.
    """

    drafter: Literal["none", "optional", "required", "head"] = "none"
    upsampler: bool = False
    neighbours: bool = False
    features: bool = False

    def __str__(self) -> str:
        drafter = {"none": [], "optional": ["a drafter, where there is one"], "required": ["a drafter"]}
        words = [*drafter.get(self.drafter, ["a draft head"])]
        words += ["an up-sampler"] * self.upsampler + ["the codebook's nearest neighbours"] * self.neighbours
        words += ["the target's features"] * self.features
        return ", ".join(words) or "nothing beside the target"


class Upsampling(NamedTuple):
    """The up-sampler that a configuration chooses, and the file of its network where it names one."""

    name: str
    sr_model: str | None

    @property
    def is_network(self) -> bool:
        """Whether it is a super-resolution network, from a file or packaged."""
        return self.name == NETWORK


class Idle(NamedTuple):
    """A knob that does nothing, beside what, and what to do for it to count."""

    knob: str
    beside: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class SamplerKnobs:
    """The configuration of a method that has no knobs but the target's sampler; methods extend it.

    name: the method's id. needs: what its decoder finds in its job. decoder: "module:function" of the decoder,
    `decode(job: mulosd.decoding.job.Job, method) -> Result`.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    decoder: ClassVar[str] = ""

    guidance: Annotated[float | None, Doc("guidance scale of the target", low=1, low_means="no guidance")] = None
    temperature: Annotated[float | None, Doc("sampling temperature of the target", low=0)] = None
    top_k: Annotated[int | None, Doc("sample from so many of the likeliest codes", low=0, low_means="all")] = None
    top_p: Annotated[float | None, Doc("sample from the codes that make up this probability; 1 is all")] = None
    cfg_interval: Annotated[
        int,
        Doc(
            "drop guidance after raster cell cfg_interval + 1, in whatever order cells are decided (LlamaGen's "
            "option); the drafter is guided everywhere",
            low=-1,
            low_means="guidance stays on",
        ),
    ] = -1
    logits_dtype: Annotated[
        Literal["float32", "model"] | None,
        Doc("what logits and guidance of target and drafter are computed in: float32 (or wider) or the weights' dtype"),
    ] = None

    def __post_init__(self) -> None:
        self._check()
        check_given([(self, knobs_of(self))])

    def check_fit(self, card: Card) -> None:
        """ConfigError where a target cannot run this: it lacks what the method needs, or a knob is beyond it."""
        if self.needs.features or self.needs.drafter == "head":
            raise ConfigError(
                f"method {self.name!r} needs {self.needs}, which no target offers yet; use another method."
            )
        if self.needs.drafter == "required" and card.draft_grid is None:
            raise ConfigError(
                f"{card.target_id} has no drafter, so method {self.name!r} cannot run; use a method without one, "
                "such as ar or zipar."
            )

    def target_sampling(self, preset: Mapping[str, float]) -> Sampling:
        """Sampling of the target model: the knobs, else the card's preset."""
        return resolve_sampling({key: getattr(self, key) for key in SAMPLER_KEYS}, preset)

    def samplings(self, preset: Mapping[str, float]) -> list[Sampling]:
        """Sampling of every model that samples codes of this method's images."""
        return [self.target_sampling(preset)]

    def draws_greedily(self, preset: Mapping[str, float]) -> bool:
        """Whether any of these models is sampled greedily."""
        return any(sampling.is_greedy for sampling in self.samplings(preset))

    def draft_sampling(self, preset: Mapping[str, float]) -> Sampling | None:
        """Sampling of the drafter; None where nothing is drafted."""
        return None

    def drafted_by(self) -> str | None:
        """Which of a card's `drafters` drafts; None where nothing is drafted."""
        return None

    def upsampling(self) -> Upsampling | None:
        """The up-sampler of the draft; None without one."""
        return None

    def downsamples(self) -> bool:
        """Whether the decoder takes finished rows of the target grid down to the draft grid."""
        return False

    def weights_hash(self, card: Card) -> str:
        """Hash of all weights that decoding on this target reads."""
        return str(card.content_hash)

    def forward_passes(self, grids: Grids) -> Forecast | None:
        """Forward passes of one image; None: not predictable."""
        return None

    def explain_forwards(self, grids: Grids) -> list[str]:
        """Further lines of `--explain` about the forward passes."""
        return []

    def resolved(self) -> dict[str, Any]:
        """Every knob but the samplers', as it counts: with automatic values resolved, or why it is not used."""
        sampling = {prefix + key for key in SAMPLER_KEYS for prefix in ("", "draft_")}
        knobs = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in sampling}
        return knobs | {idle.knob: "not used" for idle in self.idle()}

    def idle(self) -> Iterator[Idle]:
        """Knobs that do nothing beside the others, whatever their value."""
        if self.guidance is not None and self.guidance <= 1:
            yield Idle("cfg_interval", f"guidance {self.guidance:g}, which is none", "set one above 1")

    def _check(self) -> None:
        """Refuse values out of range."""
        for knob in declared_knobs(type(self)).values():
            knob.check(self.name, getattr(self, knob.name))
        check_top_p(self, "top_p")


SAMPLER_KNOBS = tuple(field.name for field in fields(SamplerKnobs))


def check_given(configurations: Sequence[tuple[SamplerKnobs, Mapping[str, Any]]]) -> None:
    """Refuse a knob that does nothing in any of the configurations that it was given to, which stand together.

    configurations: each with the knobs that it was given, of which one at its default looks as if it was not.
    """
    for knob in dict.fromkeys(key for _, given in configurations for key in given):
        found = [
            (method, next((idle for idle in method.idle() if idle.knob == knob), None))
            for method, given in configurations
            if knob in given and not _is_neutral(method, knob)
        ]
        if found and all(idle for _, idle in found):
            method, idle = found[0]
            assert idle is not None
            raise ConfigError(
                f"{method.name}.{knob} = {getattr(method, knob)!r} does nothing with {idle.beside}; leave it out, or "
                f"{idle.instead}."
            )


def knobs_of(method: SamplerKnobs) -> dict[str, Any]:
    """Knobs that differ from their introduction default, for keys and labels (docs/architecture.md "Identity")."""
    return {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}


def file_knobs(method: SamplerKnobs) -> dict[str, str]:
    """Set knobs that name a file."""
    knobs = declared_knobs(type(method))
    return {key: value for key, value in knobs_of(method).items() if knobs[key].doc.is_file}


def check_top_p(method: SamplerKnobs, key: str) -> None:
    """ConfigError where the knob is set and outside (0, 1]."""
    value = getattr(method, key)
    if value is not None and not 0.0 < value <= 1.0:
        raise ConfigError(
            f"{method.name}.{key} = {value} is out of range; allowed are numbers above 0 up to 1 (1 switches it off)."
        )


def _is_neutral(method: SamplerKnobs, knob: str) -> bool:
    value = getattr(method, knob)
    return value in NEUTRAL and value == type(method).__dataclass_fields__[knob].default
