"""Measures how a model ranks documents of held-out queries: by scores of pairs, or by vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from export.errors import SourceError
from export.quality.model import Metrics, Model, encode, ids_of
from export.runtime import Floats
from model.bundle import Embedding, EmbeddingKind, MultiVector
from model.examples import RankingExample
from model.late_interaction import document_ids, kept_tokens, query_ids


def ranking(model: Model, examples: Sequence[RankingExample]) -> Metrics:
    """Recall@1 and mean reciprocal rank by a cross-encoder's scores."""
    rows = [
        ids_of(model.subject.encode_pair(example.query, document))
        for example in examples
        for document in (example.relevant, *example.others)
    ]
    scores = iter([float(logits[0]) for logits in encode(model, rows)])
    return _metrics([[next(scores), *(next(scores) for _ in e.others)] for e in examples])


def retrieval(model: Model, examples: Sequence[RankingExample]) -> Metrics:
    """Recall@1 and mean reciprocal rank by the similarity of vectors.

    Raises:
        SourceError: the model does not embed texts.
    """
    subject, embedding = model.subject, required_embedding(model)
    reader = Reader(subject.tokenizer, embedding, subject.max_positions)
    texts = {text for example in examples for text in (example.relevant, *example.others)}
    documents = embed(model, {text: reader.document(text) for text in sorted(texts)})
    queries = embed(model, {e.query: reader.query(e.query) for e in examples})
    return _metrics(
        [
            [queries[e.query].similarity(documents[text]) for text in (e.relevant, *e.others)]
            for e in examples
        ]
    )


def _metrics(scores: Sequence[Sequence[float]]) -> Metrics:
    """``scores``: one list per query, that of the relevant document first."""
    ranks = [1 + sum(other >= relevant for other in others) for relevant, *others in scores]
    reciprocal = sum(1 / rank for rank in ranks) / len(ranks)
    return {"recall_at_1": ranks.count(1) / len(ranks), "mrr": reciprocal}


def required_embedding(model: Model) -> Embedding:
    """The description of the model's vectors.

    Raises:
        SourceError: the model has none.
    """
    if model.embedding is None or not model.subject.vocabulary_size:
        raise SourceError("the model has no vectors of texts to rank documents by")
    return model.embedding


class TokenizedText(NamedTuple):
    """A text's ids, the number of ids that are attended to, and the indices that have a vector."""

    ids: list[int]
    num_attended: int
    kept: list[int]


@dataclass(frozen=True)
class Reader:
    """Tokenizes queries and documents as the bundle's ``embedding`` says.

    ``max_tokens``: length to which a model with one vector per text cuts them.
    """

    tokenizer: Tokenizer
    embedding: Embedding
    max_tokens: int

    def query(self, text: str) -> TokenizedText:
        """A query, with the prompt ``query`` if the model has one."""
        ids, num_attended = query_ids(self._ids("query", text), self._spec)
        return TokenizedText(ids, num_attended, list(range(len(ids))))

    def document(self, text: str) -> TokenizedText:
        """The same for a document."""
        ids = document_ids(self._ids("document", text), self._spec)
        return TokenizedText(ids, len(ids), kept_tokens(ids, self._spec))

    @cached_property
    def _spec(self) -> MultiVector:
        limit, probe = self.max_tokens, self.tokenizer.encode("a").special_tokens_mask
        only_cuts = MultiVector(
            query_length=limit,
            document_length=limit,
            has_end_token=bool(probe and probe[-1]),
        )
        return self.embedding.multi_vector or only_cuts

    def _ids(self, name: str, text: str) -> list[int]:
        prompts = self.embedding.prompts
        prompt = prompts.get(name, prompts.get(self.embedding.default_prompt or "", ""))
        ids: list[int] = self.tokenizer.encode(prompt + text).ids
        return ids


class DenseVector(NamedTuple):
    values: Floats  # [size]

    def similarity(self, other: "DenseVector") -> float:
        """The cosine with ``other``."""
        norms = float(np.linalg.norm(self.values) * np.linalg.norm(other.values))
        return float(self.values @ other.values) / max(norms, 1e-12)


class SparseVector(NamedTuple):
    """The nonzero weights, in ascending order of token ids."""

    indices: NDArray[np.int64]
    values: Floats

    def similarity(self, other: "SparseVector") -> float:
        """The dot product with ``other``."""
        _, own, others = np.intersect1d(
            self.indices, other.indices, assume_unique=True, return_indices=True
        )
        return float(self.values[own] @ other.values[others])


class TokenVectors(NamedTuple):
    values: Floats  # [tokens, size]

    def similarity(self, other: "TokenVectors") -> float:
        """The sum of each token's highest dot product (Khattab and Zaharia 2020, equation 3)."""
        return float((self.values @ other.values.T).max(1).sum())


class TextVectors(Protocol):
    """The vectors of a text."""

    def similarity(self, other: Any) -> float:
        """The similarity with the vectors of another text, of the same kind."""
        ...


COMPACT: dict[EmbeddingKind, Callable[[Floats, TokenizedText], TextVectors]] = {
    EmbeddingKind.DENSE: lambda output, _text: DenseVector(output),
    EmbeddingKind.SPARSE: lambda output, _text: SparseVector(
        np.flatnonzero(output), output[np.flatnonzero(output)]
    ),
    EmbeddingKind.MULTI_VECTOR: lambda output, text: TokenVectors(output[text.kept]),
}


def embed(model: Model, texts: dict[str, TokenizedText]) -> dict[str, TextVectors]:
    """The vectors of ``texts``; texts of similar length share a batch."""
    compact = COMPACT[required_embedding(model).kind]
    ordered = sorted(texts.items(), key=lambda item: len(item[1].ids))
    rows = [(text.ids, [0] * len(text.ids)) for _, text in ordered]
    outputs = encode(model, rows, attended=[text.num_attended for _, text in ordered])
    return {
        name: compact(output, text) for (name, text), output in zip(ordered, outputs, strict=True)
    }
