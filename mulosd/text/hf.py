"""Models and tokenizers of `transformers` from a converted folder: local, hashed, safetensors only, no code run."""

from typing import Any

from mulosd.convert.folder import UNUSED
from mulosd.errors import DataError, EnvironmentProblem, join_some
from mulosd.families.card import Card
from mulosd.families.weight_files import check_part


def load_model(name: str, card: Card, part: str, *, device: str, dtype: str) -> Any:
    """The class `name` with the weights of a card's part, on a device and frozen; the part may fix its dtype."""
    import torch

    folder = check_part(card, part)
    dtype = card.encoders[part].get("compute_dtype", dtype)
    model, found = getattr(_transformers(), name).from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported below with the other mismatches
    )
    unused = UNUSED.get(card.encoders[part]["architecture"], ())
    kinds = {  # transformers would go on, with random numbers in place of what does not fit
        "missing": sorted(found["missing_keys"]),
        "unexpected": sorted(key for key in found["unexpected_keys"] if not key.startswith(unused)),
        "wrongly shaped": sorted(f"{key} {list(got)}, not {list(due)}" for key, got, due in found["mismatched_keys"]),
    }
    if wrong := "; ".join(f"{kind} tensors: {join_some(names)}" for kind, names in kinds.items() if names):
        raise DataError(f"{folder}: {wrong}; give the files of the model that its config.json describes.")
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(name: str, card: Card, part: str) -> Any:
    """The tokenizer of class `name` in the folder of a card's part."""
    return getattr(_transformers(), name).from_pretrained(check_part(card, part), local_files_only=True)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise EnvironmentProblem(
            f"text encoders need the package transformers ({error}); run `pip install mulosd[checkpoints]`."
        ) from error
    return transformers
