"""Method -> decoder: the function that the method's configuration names, `decode(job, method) -> Result`."""

from collections.abc import Callable
from typing import Any

from mulosd.decoding.job import Job, Result
from mulosd.errors import EnvironmentProblem
from mulosd.methods import SamplerKnobs
from mulosd.registry import load_object


def decode(job: Job, method: SamplerKnobs) -> Result:
    """Decode a batch with the method that `method` configures."""
    return decoder_of(type(method))(job, method)


def decoder_of(configuration: type[SamplerKnobs]) -> Callable[[Job, Any], Result]:
    """The decoder of a method; EnvironmentProblem where it cannot be loaded."""
    try:
        return load_object(configuration.decoder)  # type: ignore[no-any-return]
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvironmentProblem(
            f"the decoder {configuration.decoder!r} of method {configuration.name!r} cannot be loaded ({error}); "
            "correct or uninstall the package that adds the method."
        ) from error
