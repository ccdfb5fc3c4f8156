"""Columns of a staged image and the Arrow schema with the metadata that makes Hugging Face return PIL images.

One row is one image of one cell. No latency: that comes from bench runs only (bench/README.md).
A failed sample is a row with `error` set and image, tokens, status map and counters null.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mulosd.stage.manifest import SCHEMA_VERSION
from mulosd.types import COUNTERS, Decoded, PromptTokens

# Arrow types of the columns below; seeds and counters fit int64.
_PLAIN = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "binary": pa.binary()}
_LISTS = {"ints": ("int32", pa.int32()), "floats": ("float64", pa.float64())}

_COLUMNS: tuple[tuple[str, str], ...] = (
    ("sample_id", "string"),
    ("benchmark", "string"),
    ("prompt_id", "string"),
    ("prompt", "string"),
    ("image_index", "int32"),
    ("seed", "int64"),
    ("image", "image"),
    ("pixel_sha256", "string"),
    ("token_ids", "ints"),
    ("grid_height", "int32"),
    ("grid_width", "int32"),
    ("status_map", "binary"),
    *((name, "int64") for name in COUNTERS),
    ("chosen_taus", "floats"),
    ("batch_images", "int32"),
    ("prompt_tokens", "int32"),
    ("prompt_unknown", "int32"),
    ("prompt_cut", "int32"),
    ("error", "string"),
    ("metadata", "string"),
)
COLUMNS = tuple(name for name, _ in _COLUMNS)

UNKNOWN_VERSION = "unknown"  # of the code that made rows, where their chunk does not say


@dataclass(frozen=True)
class StagedSample:
    """One image to stage: who it is, and either `decoded` or an `error` text.

    metadata: the prompt's metadata, JSON-serialisable. batch_images: how many images shared its decoder call
    (bit equality of real models needs the same shape). prompt_tokens: what the encoder read of the prompt, where known.
    """

    sample_id: str
    benchmark: str
    prompt_id: str
    prompt: str
    image_index: int
    seed: int
    metadata: dict[str, Any] = field(default_factory=dict)
    decoded: Decoded | None = None
    error: str | None = None
    batch_images: int = 1
    prompt_tokens: PromptTokens | None = None

    def __post_init__(self) -> None:
        if (self.decoded is None) == (self.error is None):
            raise ValueError(f"{self.sample_id}: exactly one of decoded and error must be set")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"{self.sample_id}: seed {self.seed} does not fit int64 >= 0")


def arrow_schema() -> pa.Schema:
    """The schema of a chunk, with `huggingface` and `mulosd.schema` metadata."""
    features = {name: _feature(kind) for name, kind in _COLUMNS}
    metadata = {
        "huggingface": json.dumps({"info": {"features": features}}),
        "mulosd.schema": str(SCHEMA_VERSION),
    }
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in _COLUMNS], metadata=metadata)


def pixel_digest(image: np.ndarray) -> str:
    """sha256 of the decoded pixels and their shape: PNG bytes change with the encoder, pixels do not."""
    import hashlib

    digest = hashlib.sha256(repr(image.shape).encode())
    digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()


def rows_digest(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """sha256 over all values of rows as Arrow gives them back (int, str, bytes, list, None, nested dict).

    columns: those of the file that the rows were read from.
    """
    import hashlib

    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr([row[name] for name in columns]).encode())
    return digest.hexdigest()


def _arrow_type(kind: str) -> pa.DataType:
    if kind == "image":
        return pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
    return pa.list_(_LISTS[kind][1]) if kind in _LISTS else _PLAIN[kind]


def _feature(kind: str) -> dict[str, Any]:
    if kind == "image":
        return {"_type": "Image"}
    if kind in _LISTS:
        return {"_type": "List", "feature": {"dtype": _LISTS[kind][0], "_type": "Value"}}
    return {"dtype": kind, "_type": "Value"}
