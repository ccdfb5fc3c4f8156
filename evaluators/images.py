"""Staged rows -> pixels and metadata, which distinguish what is missing from what is wrong."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from evaluators.types import Row
from mulosd.errors import DataError
from mulosd.types import Image


class MissingImage(DataError):
    """A row that has no image to score: it failed, or its bytes cannot be read."""


def row_image(row: Row) -> Image:
    """The row's image as uint8 RGB [height, width, 3].

    Only embedded bytes are read: `image.path` is a label and is never opened. Raises MissingImage for a failed row, a
    row without bytes and bytes that are not an image.
    """
    from PIL import Image as pil
    from PIL import UnidentifiedImageError

    if row.get("error"):
        raise MissingImage(f"{row['sample_id']}: decoding failed: {row['error']}")
    data = (row.get("image") or {}).get("bytes")
    if not data:
        raise MissingImage(f"{row['sample_id']}: the row holds no image bytes; decode it again.")
    try:
        with pil.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        # Pillow reports broken PNG chunks as SyntaxError.
        raise MissingImage(f"{row['sample_id']}: the image bytes cannot be read ({error}); decode it again.") from error


def row_metadata(row: Row) -> dict[str, Any]:
    """Prompt metadata of a row, {} where it has none. Raises DataError when it is no JSON object."""
    text = row.get("metadata")
    if text is None or text == "":
        return {}
    try:
        data = json.loads(text) if isinstance(text, str) else dict(text) if isinstance(text, Mapping) else text
    except json.JSONDecodeError as error:
        raise DataError(f"{row['sample_id']}: metadata is not JSON ({error}); stage the chunk again.") from error
    if not isinstance(data, dict):
        raise DataError(f"{row['sample_id']}: metadata is a JSON {type(data).__name__}, allowed is an object.")
    return data
