"""Models and tokenizers of `transformers` from a converted folder: local, hashed, safetensors alone, no code run."""

from typing import Any

from mulosd.errors import DataError, EnvironmentProblem
from mulosd.models.checkpoints import check_part
from mulosd.models.families import Card


def load_model(name: str, card: Card, part: str, *, device: str, dtype: str) -> Any:
    """The class `name` with the weights of a card's part, on a device and frozen; the part may fix its dtype."""
    import torch

    folder = check_part(card, part)
    dtype = card.encoders[part].get("compute_dtype", dtype)
    model, found = getattr(_transformers(), name).from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random numbers
        raise DataError(f"{folder}: {len(missing)} tensors are missing, such as {missing[0]}; restore the files.")
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
