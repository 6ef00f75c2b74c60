"""From hidden vectors to what is asked for: one vector, class logits, or token logits."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.config import HeadConfig, HeadKind, ModelConfig, PoolingKind


def pool_cls(hidden: Tensor, _lengths: Tensor) -> Tensor:
    """The first token's vector (Devlin et al. 2018)."""
    return hidden[:, 0]


def pool_mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each row's valid tokens (Reimers and Gurevych 2019)."""
    valid = torch.arange(hidden.shape[1]) < lengths[:, None]  # [batch, length]
    total = (hidden * valid[:, :, None]).sum(1)
    return total / lengths[:, None].to(hidden.dtype)


POOLINGS: dict[PoolingKind, Callable[[Tensor, Tensor], Tensor]] = {
    PoolingKind.CLS: pool_cls,
    PoolingKind.MEAN: pool_mean,
}


class PooledHead(nn.Module):
    """A head that makes one vector of a row: ``hidden [batch, length, size]`` to ``[batch, n]``."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        if config.pooling is None:
            raise ValueError(f"a head for {config.kind} needs a pooling")
        self.pool = POOLINGS[config.pooling]


class EmbeddingHead(PooledHead):
    """The pooled vector, of length 1 if ``normalize``."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model.head)
        self.normalize = model.head.normalize

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        pooled = self.pool(hidden, lengths)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled


class ClassificationHead(PooledHead):
    """Logits ``[batch, labels]``, after BERT's pooler if ``dense_tanh``."""

    def __init__(self, model: ModelConfig) -> None:
        config, size = model.head, model.hidden_size
        super().__init__(config)
        self.dense = Linear(size, size, bias=True) if config.dense_tanh else None
        self.output = Linear(size, config.num_labels, bias=config.bias)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        pooled = self.pool(hidden, lengths)
        if self.dense is not None:
            pooled = self.dense(pooled).tanh()
        logits: Tensor = self.output(pooled)
        return logits


class TokenProjection(nn.Module):
    """``weight [hidden, vocabulary]`` is absent where it is the token embedding, transposed."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        size, vocabulary_size, config = model.hidden_size, model.vocabulary_size, model.head
        self.weight = None if config.tied else nn.Parameter(torch.empty(size, vocabulary_size))
        self.bias = nn.Parameter(torch.empty(vocabulary_size)) if config.bias else None

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        if self.weight is None:
            logits = functional.linear(hidden, embedding)
        else:
            logits = hidden @ self.weight
        return logits if self.bias is None else logits + self.bias


class LanguageModelHead(nn.Module):
    """Logits of the next token: ``hidden [..., size]`` to ``[..., vocabulary]``.

    ``embedding [vocabulary, size]`` is the output matrix if the two are tied (Press and
    Wolf 2017).
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.output = TokenProjection(model)

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        logits: Tensor = self.output(hidden, embedding)
        return logits


HEADS: dict[HeadKind, Callable[[ModelConfig], nn.Module]] = {
    HeadKind.EMBEDDING: EmbeddingHead,
    HeadKind.CLASSIFICATION: ClassificationHead,
    HeadKind.LANGUAGE_MODEL: LanguageModelHead,
}
