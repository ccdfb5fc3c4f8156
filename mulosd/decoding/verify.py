"""Verification of a drafted block: pooled acceptance, local expansion, islands (decoding.md 1.2, 1.5, 1.7).

Pure functions on arrays; no model, no cache.
"""

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from mulosd.decoding.engine import Bools, Ints


def nearest_codes(codebook: Tensor, pool_k: int) -> Tensor:
    """The pool_k nearest codes of every code, itself first: [V, D] normalised -> int64 [V, pool_k].

    On normalised vectors the Euclidean and the cosine order coincide. Duplicated code vectors cannot push
    a code out of its own neighbourhood.
    """
    similarity = codebook.double() @ codebook.double().T
    similarity.fill_diagonal_(torch.inf)
    return similarity.topk(min(pool_k, len(codebook)), dim=-1).indices


def pooled_mass(probs: Tensor, drafts: Tensor, neighbours: Tensor) -> Tensor:
    """Probability of each drafted code and its neighbours: [B, M, V], [B, M], [V, K] -> [B, M]."""
    return probs.gather(-1, neighbours[drafts]).sum(-1)


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
