"""The loss of models that embed queries and documents (:mod:`train.retrieval_recipe`)."""

import torch
from torch import Tensor
from torch.nn import functional

from model.adaptive import record_ponder
from model.bundle import EmbeddingKind, MultiVector
from model.embeddings import TokenEmbedding
from model.heads import SparseHead
from model.transformer import Transformer
from train.batches import IGNORED, TrainingBatch
from train.objectives import TrainingModule
from train.recipe import ObjectiveKind
from train.regularization import TrainingKernels, ponder_time
from train.retrieval_recipe import RetrievalRecipe

TEMPERATURES = {
    EmbeddingKind.DENSE: 0.05,
    EmbeddingKind.SPARSE: 1.0,
    EmbeddingKind.MULTI_VECTOR: 1.0,
}


class RetrievalModule(TrainingModule):
    """A bi-encoder and its loss.

    ``reading``: how a model with a vector per token tokenizes texts.
    """

    skipped: Tensor

    def __init__(
        self,
        model: Transformer,
        kernels: TrainingKernels,
        recipe: RetrievalRecipe,
        reading: MultiVector,
    ) -> None:
        super().__init__(model, kernels, ObjectiveKind.RETRIEVAL)
        self.recipe = recipe
        self.temperature = recipe.temperature or TEMPERATURES[recipe.vectors]
        skipped = torch.tensor(reading.skipped, dtype=torch.long)
        self.register_buffer("skipped", skipped, persistent=False)

    def forward(self, batch: TrainingBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """As in the base class; the loss includes the FLOPS regularizer once per query.

        Raises:
            ValueError: the batch has no documents.
        """
        if batch.documents is None:
            raise ValueError("queries without documents")
        self.kernels.balancing_losses.clear()
        with record_ponder(self.model) as ponders:
            queries = self._embed(batch.inputs, batch.lengths, batch.attended)
            documents = self._embed(batch.documents.ids, batch.documents.lengths, None)
        if self.recipe.vectors != EmbeddingKind.MULTI_VECTOR:
            scores = queries @ documents.T
        else:
            is_query = valid_tokens(batch.inputs, batch.lengths)
            is_document = valid_tokens(*batch.documents)
            is_document &= ~torch.isin(batch.documents.ids, self.skipped)
            scores = max_similarity(queries, is_query, documents, is_document)
        total = functional.cross_entropy(
            scores.float() / self.temperature,
            batch.targets[:, 0],
            ignore_index=IGNORED,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
        if self.recipe.vectors == EmbeddingKind.SPARSE:
            weighted = self.recipe.query_flops * flops(queries)
            weighted = weighted + self.recipe.document_flops * flops(documents)
            total = total + batch.num_tokens * self._flops_factor() * weighted
        losses = self.kernels.balancing_losses
        balancing = torch.stack(losses).mean() if losses else torch.zeros(())
        added = torch.stack([balancing, ponder_time(ponders)])
        return torch.stack([total, torch.zeros(())]), added

    def _embed(self, ids: Tensor, lengths: Tensor, attended: Tensor | None) -> Tensor:
        """The vectors of texts, as in the bundle: see :mod:`model.graph_spec`."""
        model = self.model
        self.kernels.begin(lengths, ids.shape[1])
        segments = torch.zeros_like(ids) if model.config.num_segments else None
        hidden = model.encode(ids, lengths, segments, attended)
        if isinstance(model.head, SparseHead):
            return sparse_weights(model, hidden, lengths)
        return model.pool(hidden, lengths)

    def _flops_factor(self) -> float:
        """The factor of the regularizer: 1 in validations, so that they can be compared."""
        warmup = self.recipe.flops_warmup_steps
        if not self.training or self.num_steps >= warmup:
            return 1.0
        return (self.num_steps / warmup) ** 2


def valid_tokens(ids: Tensor, lengths: Tensor) -> Tensor:
    """``[texts, length]``: True for tokens, False for padding."""
    return torch.arange(ids.shape[1]) < lengths[:, None]


def flops(weights: Tensor) -> Tensor:
    """The FLOPS regularizer of ``weights [texts, vocabulary]`` (Paria et al. 2020, equation 4).

    The sum over the vocabulary of each token's squared mean weight: a smooth estimate of the number
    of products in the dot product of two texts.
    """
    return weights.float().mean(0).square().sum()


def max_similarity(
    queries: Tensor, is_query: Tensor, documents: Tensor, is_document: Tensor
) -> Tensor:
    """The sum of each query token's highest dot product (Khattab and Zaharia 2020, equation 3).

    Args:
        queries: ``[queries, tokens, size]``; ``documents`` likewise.
        is_query: ``[queries, tokens]``, False for ignored tokens; ``is_document`` likewise.

    Returns:
        ``[queries, documents]``
    """
    products = torch.einsum("qis,djs->qdij", queries, documents)
    lowest = torch.finfo(products.dtype).min
    best = products.masked_fill(~is_document[None, :, None], lowest).amax(-1)
    return (best * is_query[:, None]).sum(-1)


def sparse_weights(model: Transformer, hidden: Tensor, lengths: Tensor) -> Tensor:
    """The result of ``model.pool`` for sparse vectors, ``[batch, vocabulary]``, with gradient.

    For each text and vocabulary token, only the highest logit has a gradient, and only if it is
    positive. So the logits of all tokens are computed text by text without gradients, and the few
    that count once more with gradients: a fraction of the memory and time of the whole tensor.

    Raises:
        TypeError: ``model`` has no head for sparse vectors.
    """
    head, embedding = model.head, model.embedding
    if not isinstance(head, SparseHead) or not isinstance(embedding, TokenEmbedding):
        raise TypeError("the model has no sparse vectors")
    hidden = head.dense(hidden)
    output, table = head.output, embedding.tokens.weight
    matrix = table if output.weight is None else output.weight.T  # [vocabulary, size]
    bias = torch.zeros(len(matrix)) if output.bias is None else output.bias
    chosen = []  # per text, [3, positive logits]: its row, its token, the vocabulary's token
    with torch.no_grad():
        for row, length in enumerate(lengths.tolist()):
            products = hidden[row, :length] @ matrix.T
            # The bias is the same for all tokens.
            (column,) = (products.amax(0) + bias > 0).nonzero(as_tuple=True)
            token = products[:, column].argmax(0)
            chosen.append(torch.stack([torch.full_like(column, row), token, column]))
    rows, tokens, columns = torch.cat(chosen, 1)
    vectors = hidden[rows, tokens].float()  # [positive logits, size]
    logits = (vectors * functional.embedding(columns, matrix)).sum(-1) + bias[columns]
    if head.soft_cap is not None:
        logits = head.soft_cap * torch.tanh(logits / head.soft_cap)
    weights = logits.new_zeros(len(lengths), table.shape[0])
    return weights.index_put((rows, columns), head.activate(logits))
