"""The shape of one image model, LlamaGen's or AR-DTok's. No torch: cards and plans read it too."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class GPTConfig:
    """Shape of one model; ffn_dim 0 means LlamaGen's rule (2/3 of 4d, rounded up to a multiple of 256).

    prefix_len: rows of the longest prefix. prefix_attention: "zero" erases q and k of the prefix, as LlamaGen does.
    positions "learned": no rotation, the model adds a table to its embeddings. logits_dtype: what logits and guidance
    are computed in, "float32" (or wider) or "model" (that of the weights). grids: all grids that one set of weights
    serves, distinguished by a resolution token at the end of the prefix; () is `grid` only (`on_grid`).
    """

    dim: int
    n_layers: int
    n_heads: int
    vocab_size: int
    grid: int
    prefix_len: int
    ffn_dim: int = 0
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rope_scale: float = 1.0
    prefix_attention: Literal["zero", "identity"] = "zero"
    axial_positions: bool = False
    positions: Literal["rotary", "learned"] = "rotary"
    logits_dtype: Literal["float32", "model"] = "float32"
    grids: tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.n_heads

    @property
    def num_tokens(self) -> int:
        """Image tokens N."""
        return self.grid * self.grid

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer."""
        return self.ffn_dim or -(-int(2 * 4 * self.dim / 3) // 256) * 256

    @property
    def axes(self) -> tuple[int, int]:
        """First row of the learned axes that `grid` uses, and the number of rows they have."""
        grids = self.grids or (self.grid,)
        return sum(grids[: grids.index(self.grid)]), sum(grids)

    def on_grid(self, grid: int) -> "GPTConfig":
        """The configuration of the same weights on another of `grids`, rotary positions in the same relative layout."""
        return replace(self, grid=grid, rope_scale=self.rope_scale * self.grid / grid)
