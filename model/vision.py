"""The vision tower of a decoder, and the connector to its embeddings (Liu et al. 2023, LLaVA)."""

from typing import NamedTuple

from msgspec import structs
from torch import Tensor, nn

from model.basics import make_norm
from model.config import EmbeddingConfig, Kind, ModelConfig, VisionConfig
from model.embeddings import ImageEmbedding
from model.heads import Dense
from model.kernels import ModelKernels
from model.layers import full_lengths
from model.stacks import Encoder
from model.vision_config import PatchMerge


class ImageVectors(NamedTuple):
    """Vectors of images in a batch of prompts, instead of the embeddings of their tokens.

    ``vectors [n, size]``; ``positions [n]`` are ``row * length + index``.
    """

    vectors: Tensor
    positions: Tensor

    def replace(self, embedded: Tensor) -> Tensor:
        """``embedded [batch, length, size]`` with the vectors in their positions."""
        flat = embedded.flatten(0, 1).index_put((self.positions.long(),), self.vectors)
        return flat.reshape(embedded.shape)


class VisionTower(nn.Module):
    """The tower and its connector."""

    def __init__(self, model: ModelConfig, config: VisionConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.config, own = config, _tower_config(model, config)
        self.embedding = ImageEmbedding(own, config.patches)
        self.encoder = Encoder(own, config.encoder, kernels)
        self.norm: nn.Module = nn.Identity()
        if config.merged_norm is not None:
            self.norm = make_norm(config.merged_size, config.merged_norm)
        sizes = [config.merged_size, *(dense.size for dense in config.dense)]
        layers = [Dense(*pair) for pair in zip(sizes[:-1], config.dense, strict=True)]
        self.dense = nn.Sequential(*layers)

    def forward(self, pixels: Tensor) -> Tensor:
        """``pixels [batch, height, width, channels]``, 0 to 255, to ``[batch, tokens, size]``."""
        x = self.embedding.embed(pixels)
        x = self.encoder(x, full_lengths(x))
        if not self.config.keeps_class_tokens:
            x = x[:, self.config.patches.num_class_tokens :]
        if self.config.merge is not None:
            x = self._merged(x, self.config.merge)
        vectors: Tensor = self.dense(self.norm(x))
        return vectors

    def _merged(self, x: Tensor, merge: PatchMerge) -> Tensor:
        """Merges squares of patches: ``[batch, patches, size]`` to ``[batch, squares, merged]``."""
        (rows, columns), side = self.config.grid, self.config.merge_size
        squares = x.reshape(x.shape[0], rows, side, columns, side, x.shape[2])
        if merge == PatchMerge.MEAN:
            return squares.mean((2, 4)).flatten(1, 2)
        return squares.transpose(2, 3).reshape(x.shape[0], rows * columns, -1)


def _tower_config(model: ModelConfig, config: VisionConfig) -> ModelConfig:
    """The tower's configuration as that of a model of its own."""
    return structs.replace(
        model,
        kind=Kind.ENCODER,
        vocabulary_size=0,
        hidden_size=config.hidden_size,
        position=config.patches.position,
        embedding=EmbeddingConfig(norm=config.norm),
        encoder=config.encoder,
        decoder=None,
        patches=config.patches,
        vision=None,
    )
