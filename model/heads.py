"""Heads: from hidden vectors to an embedding, or to logits of labels or of the vocabulary."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import ACTIVATIONS, Linear, make_norm
from model.config import DenseConfig, HeadKind, ModelConfig
from model.pooling import POOLINGS, make_pooling, pooled_size, valid_mask


class Dense(nn.Module):
    """``norm(activation(x W + b))``: ``[..., inputs]`` to ``[..., size]``."""

    def __init__(self, inputs: int, config: DenseConfig) -> None:
        super().__init__()
        self.linear = Linear(inputs, config.size, bias=config.bias)
        self.activation = None if config.activation is None else ACTIVATIONS[config.activation]
        self.norm: nn.Module = nn.Identity()
        if config.norm is not None:
            self.norm = make_norm(config.size, config.norm)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.activation is not None:
            x = self.activation(x)
        normed: Tensor = self.norm(x)
        return normed


class _Head(nn.Module):
    """The base of all heads: dense layers; the outputs of the last one have ``size`` features."""

    def __init__(self, model: ModelConfig, input_size: int | None = None) -> None:
        super().__init__()
        sizes = [input_size or model.hidden_size, *(dense.size for dense in model.head.dense)]
        layers = [Dense(*pair) for pair in zip(sizes[:-1], model.head.dense, strict=True)]
        self.size = sizes[-1]
        self.dense = nn.Sequential(*layers)


class _PooledHead(_Head):
    """A head that pools each row: ``hidden [batch, length, size]`` to ``[batch, n]``."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model, pooled_size(model))
        self.pools_last = model.head.pools_last
        if self.pools_last and model.head.pooling not in POOLINGS:
            raise ValueError(f"the pooling {model.head.pooling} comes before dense layers")
        self.pool = make_pooling(model)
        self.pooled_norm: nn.Module = nn.Identity()
        if model.head.pooled_norm is not None:
            self.pooled_norm = make_norm(pooled_size(model), model.head.pooled_norm)

    def vectors(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The pooled vector of each row after the dense layers, ``[batch, size]``."""
        if self.pools_last:
            return self.pool(self.dense(hidden), lengths)
        vectors: Tensor = self.dense(self.pooled_norm(self.pool(hidden, lengths)))
        return vectors


class EmbeddingHead(_PooledHead):
    """The pooled vector, with L2 norm 1 if ``normalize``; and what the model has for each token."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        config, size = model.head, model.hidden_size
        self.normalize = config.normalize
        self.sparse = Linear(size, 1, bias=True) if config.sparse else None
        self.multi_vector = None
        if config.multi_vector is not None:
            self.multi_vector = Dense(size, config.multi_vector)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        pooled = self.vectors(hidden, lengths)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled

    def of_tokens(self, hidden: Tensor) -> list[Tensor]:
        """The outputs for each token (Chen et al. 2024, M3-Embedding, section 3.2), if any.

        From ``hidden [batch, length, size]``: the weight of each token in a sparse vector,
        ``[batch, length]``, at least 0; and its vector with L2 norm 1, ``[batch, length, n]``.
        """
        outputs: list[Tensor] = []
        if self.sparse is not None:
            outputs.append(self.sparse(hidden).squeeze(-1).relu())
        if self.multi_vector is not None:
            outputs.append(functional.normalize(self.multi_vector(hidden), dim=-1))
        return outputs


class MultiVectorHead(_Head):
    """A vector for each token (Khattab and Zaharia 2020, ColBERT).

    ``hidden [batch, length, size]`` to ``[batch, length, n]``; with L2 norm 1 if ``normalize``.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.normalize = model.head.normalize

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        vectors: Tensor = self.dense(hidden)
        return functional.normalize(vectors, dim=-1) if self.normalize else vectors


class ClassificationHead(_PooledHead):
    """Logits ``[batch, labels]``."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.output = Linear(self.size, model.head.num_labels, bias=model.head.bias)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.output(self.vectors(hidden, lengths))
        return logits


class TokenClassificationHead(_Head):
    """Logits per token, ``[batch, length, labels]``."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.output = Linear(self.size, model.head.num_labels, bias=model.head.bias)

    def forward(self, hidden: Tensor, _lengths: Tensor) -> Tensor:
        logits: Tensor = self.output(self.dense(hidden))
        return logits


class TokenProjection(nn.Module):
    """``weight [hidden, vocabulary]``; if tied, the transposed token embedding instead."""

    def __init__(self, model: ModelConfig, size: int) -> None:
        super().__init__()
        vocabulary_size, config = model.vocabulary_size, model.head
        self.weight = None if config.tied else nn.Parameter(torch.empty(size, vocabulary_size))
        self.bias = nn.Parameter(torch.empty(vocabulary_size)) if config.bias else None

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        if self.weight is None:
            logits = functional.linear(hidden, embedding)
        else:
            logits = hidden @ self.weight
        return logits if self.bias is None else logits + self.bias


class LanguageModelHead(_Head):
    """Logits of the next token or of a masked one: ``[..., size]`` to ``[..., vocabulary]``.

    If tied, ``embedding [vocabulary, size]`` is the output matrix (Press and Wolf 2017).
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.output = TokenProjection(model, self.size)
        self.soft_cap = model.head.soft_cap

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        return self.project(self.dense(hidden), embedding)

    def project(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Logits from the dense layers' outputs ``x [..., size]``."""
        logits: Tensor = self.output(x, embedding)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits


class SparseHead(LanguageModelHead):
    """A weight for each token of the vocabulary (Formal et al. 2021, SPLADE v2, equation 6).

    The maximum of ``log(1 + relu(logit))`` over a text's tokens: ``[batch, vocabulary]``.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        self.log_twice = model.head.log_twice

    def weights(self, hidden: Tensor, lengths: Tensor, embedding: Tensor) -> Tensor:
        """``hidden [batch, length, size]``, right-padded to ``lengths [batch]``, to weights."""
        # Padding repeats a row's first token, which leaves the maximum unchanged: masking the
        # logits would copy ``[batch, length, vocabulary]``. Kernels that skip padding make its
        # logits 0, which the rectifier ignores; before the last product, padding may be anything.
        x = self.dense(hidden)
        x = torch.where(valid_mask(x, lengths), x, x[:, :1])
        # The function is monotonic, so it is applied after the maximum, to fewer numbers.
        return self.activate(self.project(x, embedding).amax(1))

    def activate(self, logits: Tensor) -> Tensor:
        """The weights of the logits."""
        weights = logits.relu().log1p()
        return weights.log1p() if self.log_twice else weights


HEADS: dict[HeadKind, Callable[[ModelConfig], nn.Module]] = {
    HeadKind.EMBEDDING: EmbeddingHead,
    HeadKind.SPARSE_EMBEDDING: SparseHead,
    HeadKind.MULTI_VECTOR_EMBEDDING: MultiVectorHead,
    HeadKind.CLASSIFICATION: ClassificationHead,
    HeadKind.TOKEN_CLASSIFICATION: TokenClassificationHead,
    HeadKind.LANGUAGE_MODEL: LanguageModelHead,
}
