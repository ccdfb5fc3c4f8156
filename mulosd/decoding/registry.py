"""Method id -> decoder. Every decoder is `decode(job, method) -> Result`."""

from mulosd.decoding.ar import decode_ar
from mulosd.decoding.draft_only import decode_draft_only
from mulosd.decoding.job import Job, Result
from mulosd.decoding.mulosd import decode_mulosd
from mulosd.decoding.zipar import decode_zipar
from mulosd.errors import unknown_name
from mulosd.methods import SamplerKnobs

DECODERS = {
    "ar": decode_ar,
    "draft-only": decode_draft_only,
    "zipar": decode_zipar,
    "mulosd": decode_mulosd,
}


def decode(job: Job, method: SamplerKnobs) -> Result:
    """Decode a batch with the method that `method` configures."""
    if method.name not in DECODERS:
        raise unknown_name("method", method.name, DECODERS)
    return DECODERS[method.name](job, method)
