"""An image model = trunk + condition embedder, under LlamaGen's state-dict names."""

import torch
from torch import nn

from mulosd.models.condition import Condition, Prefix
from mulosd.models.conditioning import CaptionEmbedder, ClassEmbedder, WordEncoder
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.transformer import Transformer, rope_table


class ImageGPT(Transformer):
    """`cls_embedding` makes the prefix; everything else is the trunk."""

    def __init__(self, config: GPTConfig, embedder: nn.Module) -> None:
        super().__init__(config)
        self.cls_embedding = embedder

    def prefix(self, condition: Condition, *, with_null: bool) -> Prefix:
        """Prefix rows of a condition, the null rows after them if `with_null`."""
        prefix: Prefix = self.cls_embedding(condition, with_null=with_null)
        return prefix


def on_grid(model: ImageGPT, grid: int) -> ImageGPT:
    """A model of several grids (layout of `tiny_gpt`) on another one of them; the parameters are shared, not copied."""
    config = model.config.on_grid(grid)
    with torch.device("meta"):
        view = tiny_gpt(config).requires_grad_(model.output.weight.requires_grad)  # assigning takes this over
    view.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    view.rope = rope_table(config).to(model.output.weight.device)
    return view.train(model.training)


def llamagen_t2i(config: GPTConfig, caption_dim: int) -> ImageGPT:
    """LlamaGen's text-to-image layout: zero prefix rotation, caption projection."""
    return ImageGPT(config, CaptionEmbedder(caption_dim, config.dim, config.prefix_len))


def llamagen_c2i(config: GPTConfig, num_classes: int) -> ImageGPT:
    """LlamaGen's class-to-image layout: one prefix row, that of the class."""
    return ImageGPT(config, ClassEmbedder(num_classes, config.dim))


def tiny_gpt(config: GPTConfig) -> ImageGPT:
    """The layout of the tiny family: attended prefix, words of the scenes world."""
    return ImageGPT(config, WordEncoder(config))
