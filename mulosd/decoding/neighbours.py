"""The k-NN table of a codebook, computed once per codebook and kept on disk.

One table serves every pool_k up to its width: its columns are sorted, so a smaller pool is a prefix. Files are in
$XDG_CACHE_HOME/mulosd (else ~/.cache/mulosd), are named after the codebook's content and carry a digest of their own.
"""

import hashlib
import logging
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mulosd.decoding.verify import nearest_codes
from mulosd.errors import EnvironmentProblem
from mulosd.files.home import cache_home
from mulosd.files.publish import publish_bytes

LOG = logging.getLogger(__name__)
WIDTH = 1024  # the largest pool of the paper's ablation
SMALL = 4096  # a codebook below this is sorted in less time than it takes to trust a file


class NeighbourTable:
    """The nearest codes of one codebook [V, D], on its device."""

    def __init__(self, codebook: Tensor) -> None:
        self._codebook = codebook
        self._table = torch.empty(len(codebook), 0, dtype=torch.int16)

    def __call__(self, pool_k: int) -> Tensor:
        """[V, pool_k], int16 where the ids fit and else int32; column 0 is the code itself."""
        if pool_k > self._table.shape[1]:
            self._table = neighbour_table(self._codebook, pool_k).to(self._codebook.device)
        return self._table[:, :pool_k]


def neighbour_table(codebook: Tensor, pool_k: int) -> Tensor:
    """A table of at least pool_k columns, from the cache folder where it is there and intact."""
    codes = len(codebook)
    if codes < SMALL:
        return _computed(codebook, codes)
    path = cache_folder() / f"nearest-{_digest(codebook)[:32]}.safetensors"
    table = _read(path, codes)
    if table is None or table.shape[1] < pool_k:
        table = _computed(codebook, min(codes, max(pool_k, WIDTH)))
        try:
            publish_bytes(path, save({"nearest": table}, {"sha256": _digest(table)}))
        except EnvironmentProblem as error:
            LOG.warning("the neighbour table is not kept and will be computed again: %s", error)
    return table


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/mulosd, else ~/.cache/mulosd."""
    return cache_home() / "mulosd"


def _computed(codebook: Tensor, width: int) -> Tensor:
    ids = torch.int16 if len(codebook) <= torch.iinfo(torch.int16).max + 1 else torch.int32
    return nearest_codes(codebook, width).to(ids).cpu().contiguous()


def _read(path: Path, codes: int) -> Tensor | None:
    """The stored table; None, with a warning unless there is no file, where it cannot be trusted."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            table: Tensor = file.get_tensor("nearest")
            expected = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError) as error:
        LOG.warning("%s cannot be read (%s); the neighbour table is computed again", path, error)
        return None
    if len(table) != codes or _digest(table) != expected:
        LOG.warning("%s is damaged; the neighbour table is computed again", path)
        return None
    return table


def _digest(values: Tensor) -> str:
    """sha256 over type, shape and bytes."""
    values = values.cpu().contiguous()
    head = f"{values.dtype} {tuple(values.shape)} ".encode()
    return hashlib.sha256(head + values.view(torch.uint8).numpy().tobytes()).hexdigest()
