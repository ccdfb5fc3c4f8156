"""Verification of a drafted block: pooled acceptance, local expansion, islands (docs/mulosd.md "The cycle").

Pure functions on arrays; no model, no cache.
"""

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from mulosd.types import Bools, Ints


def nearest_codes(codebook: Tensor, pool_k: int) -> Tensor:
    """The pool_k nearest codes of every code, itself first: [V, D] normalised -> int64 [V, pool_k].

    On normalised vectors the Euclidean and the cosine order coincide. Duplicated code vectors cannot push
    a code out of its own neighbourhood; ties go to the lower id, so a smaller pool lies inside a larger one.
    """
    codes = codebook.double()
    tables = []
    for ids in torch.split(torch.arange(len(codes), device=codes.device), 1024):
        similarity = codes[ids] @ codes.T
        similarity.scatter_(1, ids[:, None], torch.inf)
        tables.append(similarity.sort(dim=-1, descending=True, stable=True).indices[:, :pool_k])
    return torch.cat(tables)


def pooled_mass(probs: Tensor, drafts: Tensor, neighbours: Tensor) -> Tensor:
    """Probability of each drafted code and its neighbours: [B, M, V], [B, M], [V, K] of any integer -> float64 [B, M].

    Rounding never lifts it above 1, so that every tau > 1 rejects.
    """
    return probs.gather(-1, neighbours[drafts].long()).double().sum(-1).clamp(max=1.0)


def expand(rejected: Bools, radius: int, first: int, allowed: Bools) -> Bools:
    """R_X: cells within Chebyshev distance `radius` of a rejected one, raster index >= first, inside `allowed`.

    rejected, allowed: [H, W]; first: raster index t0 of the first rejected cell.
    """
    grown = rejected
    if radius > 0 and rejected.any():
        size = 2 * radius + 1
        grown = ndimage.binary_dilation(rejected, structure=np.ones((size, size), bool))
    index = np.arange(rejected.size).reshape(rejected.shape)
    return grown & allowed & (index >= first)


def islands(cells: Bools) -> Ints:
    """8-connected components of a boolean map [H, W], numbered from 1."""
    labels, _ = ndimage.label(cells, structure=np.ones((3, 3), int))
    return np.asarray(labels, np.int64)
