"""Input embeddings: tokens or images to vectors, with positions and segments."""

from abc import ABC, abstractmethod

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear, make_norm
from model.config import EmbeddingConfig, ModelConfig
from model.image_config import PatchConfig
from model.norm_config import NormConfig
from model.position_config import PositionKind, PositionPlacement
from model.positions import POSITIONS

MAX_PIXEL = 255.0
# Token dropout (ESM): training chose 15 % of the tokens and masked 80 % of those.
KEPT_TOKENS = 1 - 0.15 * 0.8


class EmbeddingTable(nn.Module):
    """``weight [rows, size]``; returns the rows of the given ids."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, size))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class InputEmbedding(nn.Module):
    """Adds positions and segments to token embeddings, then normalizes and projects them.

    There is a projection if the embeddings do not have the hidden size (Lan et al. 2019) and the
    layers are not recurrent, or if positions are concatenated instead of added.

    Args:
        norms_tokens: normalizes the token embeddings, before positions are added.
    """

    def __init__(self, config: ModelConfig, *, norms_tokens: bool = False) -> None:
        super().__init__()
        self.norms_tokens = norms_tokens
        embedding = config.embedding
        size = embedding.size or config.hidden_size
        position_size = config.position.size or size
        self.positions = POSITIONS[config.position.kind](config.position, position_size)
        is_concatenated = config.position.placement == PositionPlacement.CONCATENATED
        if is_concatenated:  # segments and the norm have the width of both
            size += position_size
        if is_concatenated and config.position.kind == PositionKind.NONE:
            raise ValueError("there are no positions to concatenate")
        self.segments: nn.Module | None = None
        if embedding.num_segments:
            self.segments = EmbeddingTable(embedding.num_segments, size)
        self.norm: nn.Module = nn.Identity()
        if embedding.norm is not None:
            self.norm = make_norm(size, embedding.norm)
        self.projection: nn.Module = nn.Identity()
        if is_concatenated or (embedding.size is not None and config.recurrent is None):
            self.projection = Linear(size, config.hidden_size, bias=True)

    def forward(self, x: Tensor, positions: Tensor, segment_ids: Tensor | None) -> Tensor:
        """``x [batch, length, size]`` to ``[batch, length, hidden]``."""
        if self.norms_tokens:
            x = self.norm(x)
        x = self.positions(x, positions)
        if self.segments is not None:
            if segment_ids is None:
                raise ValueError("this model needs segment_ids")
            x = x + self.segments(segment_ids)
        projected: Tensor = self.projection(x if self.norms_tokens else self.norm(x))
        return projected


class FirstEmbedding(InputEmbedding, ABC):
    """The input embedding of the first stack."""

    @abstractmethod
    def look_up(self, inputs: Tensor) -> Tensor:
        """The vectors of ``inputs`` without positions, ``[batch, length, size]``."""

    def transform(self, x: Tensor, _inputs: Tensor, _lengths: Tensor | None) -> Tensor:
        """The vectors ``x`` of ``inputs`` after token dropout or :class:`Trigrams`."""
        return x

    def embed(
        self,
        inputs: Tensor,
        segment_ids: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """``inputs`` of whole sequences, as in :meth:`look_up`, to ``[batch, length, hidden]``.

        Args:
            lengths: ``[batch]``, lengths of right-padded sequences; for token dropout and trigrams.
        """
        x = self.transform(self.look_up(inputs), inputs, lengths)
        embedded: Tensor = self(x, torch.arange(x.shape[1]), segment_ids)
        return embedded


class Trigrams(nn.Module):
    """A linear map of each token's vector and those of its neighbours (Sun et al. 2020, 3.1).

    The order is the next token, the token, the previous one; zeros are beyond the text.
    """

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.map = Linear(3 * size, hidden_size, bias=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """``x [batch, length, size]``, right-padded to ``lengths``, to the hidden size."""
        is_valid = torch.arange(x.shape[1]) < lengths[:, None]
        x = x.masked_fill(~is_valid[:, :, None], 0.0)
        around = functional.pad(x, (0, 0, 1, 1))  # one token before and after
        mapped: Tensor = self.map(torch.cat([around[:, 2:], x, around[:, :-2]], -1))
        return mapped


def _of_source(config: ModelConfig) -> ModelConfig:
    """``config`` with the encoder's number of positions."""
    number = config.position.max_source_positions
    if number is None:
        return config
    if config.position.kind != PositionKind.LEARNED or not config.embedding.separate_target:
        raise ValueError("only stacks with their own learned positions differ in their number")
    position = structs.replace(config.position, max_positions=number)
    return structs.replace(config, position=position)


class TokenEmbedding(FirstEmbedding):
    """Embeds token ids ``[batch, length]`` with the token table that both stacks share."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(_of_source(config))
        size = config.embedding.size or config.hidden_size
        self.trigrams: Trigrams | None = None
        if config.embedding.trigram_size is not None:
            size = config.embedding.trigram_size
            self.trigrams = Trigrams(size, config.hidden_size)
        self.scale = config.embedding.scale
        self.dropped_token = config.embedding.dropped_token
        self.tokens = EmbeddingTable(config.vocabulary_size, size)

    def look_up(self, inputs: Tensor) -> Tensor:
        """Scaled rows of the token table: ``[batch, length]`` to ``[batch, length, size]``."""
        x: Tensor = self.tokens(inputs)
        return x if self.scale == 1.0 else x * self.scale

    def transform(self, x: Tensor, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        """See :class:`FirstEmbedding`."""
        if self.trigrams is None and self.dropped_token is None:
            return x
        if lengths is None:
            raise ValueError("token dropout and trigrams need lengths")
        transformed = x if self.trigrams is None else self.trigrams(x, lengths)
        return self._drop_out(transformed, inputs, lengths)

    def _drop_out(self, x: Tensor, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Zeroes the vectors of masks and scales the others (Rives et al. 2021, after their code).

        The factor is the share of unmasked tokens in training, divided by that in the text.
        """
        if self.dropped_token is None:
            return x
        is_mask = inputs == self.dropped_token
        is_valid = torch.arange(inputs.shape[1]) < lengths[:, None]
        num_masks = (is_mask & is_valid).sum(1).to(x.dtype)
        # A text of masks alone has no vectors to scale.
        num_kept = (lengths.to(x.dtype) - num_masks).clamp(min=1.0)
        factors = KEPT_TOKENS * lengths.to(x.dtype) / num_kept
        return x.masked_fill(is_mask[:, :, None], 0.0) * factors[:, None, None]


def images_config(
    model: ModelConfig, patches: PatchConfig, hidden_size: int, norm: NormConfig | None = None
) -> ModelConfig:
    """``model`` with the input and the size of its images' encoder, for a model of texts too."""
    return structs.replace(
        model,
        vocabulary_size=0,
        hidden_size=hidden_size,
        position=patches.position,
        embedding=EmbeddingConfig(norm=norm),
    )


class TargetTokens(nn.Module):
    """A decoder's own token table."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = config.embedding.scale
        self.tokens = EmbeddingTable(config.vocabulary_size, config.hidden_size)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Scaled rows: ``[batch, length]`` to ``[batch, length, hidden]``."""
        x: Tensor = self.tokens(token_ids)
        return x * self.scale


class ImageEmbedding(FirstEmbedding):
    """The vectors of an image's patches, row by row, after its class tokens.

    Dosovitskiy et al. 2021, equation 1. A convolution whose stride is the size of its kernel is a
    linear map of each patch; here its weight is ``[rows * columns * channels, size]``.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: ModelConfig, config: PatchConfig) -> None:
        super().__init__(model)
        self.patch_size, num_inputs = config.size, config.size**2 * config.num_channels
        self.patches = Linear(num_inputs, model.hidden_size, bias=config.bias)
        self.class_tokens = nn.Parameter(torch.empty(config.num_class_tokens, model.hidden_size))
        self.register_buffer("mean", torch.tensor(config.mean), persistent=False)
        self.register_buffer("deviation", torch.tensor(config.deviation), persistent=False)

    def look_up(self, inputs: Tensor) -> Tensor:
        """Pixels ``[batch, height, width, channels]``, 0 to 255, to ``[batch, tokens, size]``."""
        x = (inputs.to(self.mean.dtype) / MAX_PIXEL - self.mean) / self.deviation
        size, (batch, height, width, channels) = self.patch_size, x.shape
        x = x.reshape(batch, height // size, size, width // size, size, channels)
        x = x.transpose(2, 3).reshape(batch, -1, size * size * channels)
        return torch.cat([self.class_tokens.expand(batch, -1, -1), self.patches(x)], 1)
