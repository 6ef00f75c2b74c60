"""Pooling: from the vectors of a text's tokens, or of an image's patches, to one vector."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.basics import Linear, make_norm
from model.config import ModelConfig, PoolingKind
from model.layers import FeedForward
from model.mixers import required

# ``hidden [batch, length, size]`` and ``lengths [batch]`` to ``[batch, pooled size]``.
Pooling = Callable[[Tensor, Tensor], Tensor]


def valid_mask(hidden: Tensor, lengths: Tensor) -> Tensor:
    """``[batch, length, 1]``: True for tokens, False for padding."""
    return (torch.arange(hidden.shape[1]) < lengths[:, None])[:, :, None]


def pool_cls(hidden: Tensor, _lengths: Tensor) -> Tensor:
    """The first token's vector (Devlin et al. 2018)."""
    return hidden[:, 0]


def pool_mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each row's valid tokens (Reimers and Gurevych 2019)."""
    total = (hidden * valid_mask(hidden, lengths)).sum(1)
    return total / lengths[:, None].to(hidden.dtype)


def pool_mean_sqrt(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each row's valid tokens, divided by the square root of their number."""
    total = (hidden * valid_mask(hidden, lengths)).sum(1)
    return total / lengths[:, None].to(hidden.dtype).sqrt()


def pool_weighted_mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean with weight n for a row's n-th token (Muennighoff 2022, SGPT)."""
    ranks = torch.arange(1, hidden.shape[1] + 1, dtype=hidden.dtype)[:, None]
    weights = ranks * valid_mask(hidden, lengths)  # [batch, length, 1]
    return (hidden * weights).sum(1) / weights.sum(1)


def pool_max(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The maximum of each feature over a row's valid tokens."""
    return hidden.masked_fill(~valid_mask(hidden, lengths), torch.finfo(hidden.dtype).min).amax(1)


def pool_last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The last valid token's vector."""
    last = (lengths - 1).long()[:, None, None].expand(-1, -1, hidden.shape[2])
    return hidden.gather(1, last)[:, 0]


def pool_second_last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The vector of the valid token before the last; of a single token, its own."""
    return pool_last(hidden, (lengths - 1).clamp(min=1))


POOLINGS: dict[PoolingKind, Pooling] = {
    PoolingKind.CLS: pool_cls,
    PoolingKind.MEAN: pool_mean,
    PoolingKind.MEAN_SQRT: pool_mean_sqrt,
    PoolingKind.WEIGHTED_MEAN: pool_weighted_mean,
    PoolingKind.MAX: pool_max,
    PoolingKind.LAST: pool_last,
    PoolingKind.SECOND_LAST: pool_second_last,
}


class ImagePooling(nn.Module):
    """The base of poolings of patches; the first ``num_class_tokens`` vectors are of none."""

    def __init__(self, num_class_tokens: int) -> None:
        super().__init__()
        self.num_class_tokens = num_class_tokens


class PatchMean(ImagePooling):
    """The mean of the patches' vectors."""

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        return hidden[:, self.num_class_tokens :].mean(1)


class ClassAndPatchMean(ImagePooling):
    """The first class token's vector, then the patches' mean (Oquab et al. 2023, DINOv2)."""

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        return torch.cat([hidden[:, 0], hidden[:, self.num_class_tokens :].mean(1)], -1)


class ClassTokens(ImagePooling):
    """The vectors of all class tokens, one after another (Touvron et al. 2021, DeiT)."""

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        return hidden[:, : self.num_class_tokens].flatten(1)


class ClassTokenMean(ImagePooling):
    """The mean of all class tokens' vectors (Gong et al. 2021, AST)."""

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        return hidden[:, : self.num_class_tokens].mean(1)


class AttentionPooling(nn.Module):
    """Attention with one learned query (Lee et al. 2019, Set Transformer, section 3.2).

    The query is the same for all images, so ``scores`` is its product with the key matrix. The
    heads, the feed-forward and the norm are like those of the encoder's last layer.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        if model.encoder is None:
            raise ValueError("attention pooling needs an encoder")
        size, layer = model.hidden_size, model.encoder.layers[-1]
        self.num_heads = required(layer.attention).num_heads
        self.scores = Linear(size, self.num_heads, bias=False)
        self.values = Linear(size, size, bias=True)
        self.output = Linear(size, size, bias=True)
        self.norm = make_norm(size, layer.norm)
        self.feed_forward = FeedForward(size, required(layer.feed_forward))

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        weights = self.scores(hidden).softmax(1).transpose(1, 2)  # [batch, heads, length]
        values = self.values(hidden)
        values = values.reshape(*values.shape[:2], self.num_heads, -1).transpose(1, 2)
        pooled = (weights[:, :, None] @ values).flatten(1)  # [batch, size]
        x = self.output(pooled)
        y: Tensor = x + self.feed_forward(self.norm(x))
        return y


IMAGE_POOLINGS: dict[PoolingKind, type[ImagePooling]] = {
    PoolingKind.PATCH_MEAN: PatchMean,
    PoolingKind.CLASS_AND_PATCH_MEAN: ClassAndPatchMean,
    PoolingKind.CLASS_TOKENS: ClassTokens,
    PoolingKind.CLASS_TOKEN_MEAN: ClassTokenMean,
}


def make_pooling(model: ModelConfig) -> Pooling:
    """The pooling of the head of ``model``.

    Raises:
        ValueError: it has no pooling, or an image pooling in a model of texts.
    """
    kind = model.head.pooling
    if kind is None:
        raise ValueError(f"a head for {model.head.kind} needs a pooling")
    if kind in POOLINGS:
        return POOLINGS[kind]
    patches = model.patches or model.spectrogram
    if patches is None:
        raise ValueError(f"the pooling {kind} is of images and spectrograms")
    if kind == PoolingKind.ATTENTION:
        return AttentionPooling(model)
    return IMAGE_POOLINGS[kind](patches.num_class_tokens)


def pooled_size(model: ModelConfig) -> int:
    """The size of the vector that the pooling returns."""
    num_vectors = 1
    if model.head.pooling == PoolingKind.CLASS_AND_PATCH_MEAN:
        num_vectors = 2
    elif model.head.pooling == PoolingKind.CLASS_TOKENS and model.patches is not None:
        num_vectors = model.patches.num_class_tokens
    return num_vectors * model.hidden_size
