"""Computes the figures of fidelity from logits, vectors, decisions and texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

# Masked logits are large negative numbers or minus infinity, depending on the graph.
LOWEST_LOGIT = -1e4
MAX_ROWS = 128  # rows of logits in float64 at a time
CHRF_ORDER, CHRF_BETA = 6, 2  # the defaults of sacrebleu


@dataclass(frozen=True)
class LogitComparison:
    """Sums over tokens; adding two comparisons compares all tokens of both.

    Attributes:
        divergence: the Kullback-Leibler divergence (reference || other), in nats.
        squared_difference: of the log-probabilities of the reference's tokens, in nats squared.
        probability: the probability that the reference gives to its tokens.
    """

    num_tokens: int = 0
    num_equal: int = 0
    divergence: float = 0.0
    squared_difference: float = 0.0
    probability: float = 0.0

    def __add__(self, other: "LogitComparison") -> "LogitComparison":
        return LogitComparison(
            self.num_tokens + other.num_tokens,
            self.num_equal + other.num_equal,
            self.divergence + other.divergence,
            self.squared_difference + other.squared_difference,
            self.probability + other.probability,
        )

    @property
    def top1_agreement(self) -> float:
        """The share of tokens for which both models have the same most probable token."""
        return self.num_equal / self.num_tokens

    @property
    def kl_divergence(self) -> float:
        """The mean divergence per token, in nats."""
        return self.divergence / self.num_tokens

    @property
    def rms_logprob_difference(self) -> float:
        """The root of the mean squared difference of log-probabilities, in nats."""
        return float(np.sqrt(self.squared_difference / self.num_tokens))

    @property
    def mean_probability(self) -> float:
        """The mean probability that the reference gives to its tokens; low without training."""
        return self.probability / self.num_tokens


def compare_logits(
    reference: Floats, other: Floats, tokens: Ids | None = None, suppressed: Sequence[int] = ()
) -> LogitComparison:
    """Compares two models' logits ``[tokens, vocabulary]`` for the same tokens.

    Args:
        tokens: ``[tokens]`` whose log-probabilities are compared; default: the reference's best.
        suppressed: ids that are never generated.

    Raises:
        ValueError: the shapes differ.
    """
    if reference.shape != other.shape or reference.ndim != 2:
        raise ValueError(f"logits of shapes {reference.shape} and {other.shape}")
    result = LogitComparison()
    for start in range(0, len(reference), MAX_ROWS):
        part = slice(start, start + MAX_ROWS)
        expected = log_softmax(reference[part], suppressed)
        actual = log_softmax(other[part], suppressed)
        best = expected.argmax(-1)
        own = best if tokens is None else tokens[part]
        rows = np.arange(len(best))
        probabilities = np.exp(expected)
        result += LogitComparison(
            num_tokens=len(best),
            num_equal=int((best == actual.argmax(-1)).sum()),
            divergence=float((probabilities * (expected - actual)).sum()),
            squared_difference=float(np.square(expected[rows, own] - actual[rows, own]).sum()),
            probability=float(probabilities[rows, own].sum()),
        )
    return result


def log_softmax(logits: Floats, suppressed: Sequence[int] = ()) -> Doubles:
    """Log-probabilities ``[..., vocabulary]``, in nats."""
    x: Doubles = np.maximum(logits, LOWEST_LOGIT).astype(np.float64)
    x[..., list(suppressed)] = LOWEST_LOGIT
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


@dataclass(frozen=True)
class VectorComparison:
    """Cosines of the two vectors of each text, or of each token.

    ``retrieval_agreement``: the share of texts whose nearest other text is the same.
    """

    min_cosine: float
    mean_cosine: float
    retrieval_agreement: float


def compare_vectors(
    reference: Floats, other: Floats, *, by_dot_product: bool = False
) -> VectorComparison:
    """Compares two models' vectors ``[texts, size]`` of the same texts, at least three.

    Args:
        by_dot_product: the nearest text has the largest dot product instead of the largest cosine,
            and texts may have a zero vector, whose cosine is ignored.
    """
    if by_dot_product:
        scores = [vectors @ vectors.T for vectors in (reference, other)]
        has_vector = reference.any(-1)
        cosines = (_units(reference[has_vector]) * _units(other[has_vector])).sum(-1)
    else:
        expected, actual = _units(reference), _units(other)
        scores = [vectors @ vectors.T for vectors in (expected, actual)]
        cosines = (expected * actual).sum(-1)
    return _vector_comparison(cosines, scores)


@dataclass(frozen=True)
class TokenVectors:
    """Vectors ``[tokens, size]`` of each text as a query, and as a document."""

    queries: Sequence[Floats]
    documents: Sequence[Floats]

    def scores(self) -> Doubles:
        """MaxSim of each query and document: the sum of each query token's largest dot product.

        Khattab and Zaharia 2020, equation 3; ``[queries, documents]``.
        """
        starts = np.cumsum([0, *(len(vectors) for vectors in self.documents[:-1])])
        tokens = np.concatenate(self.documents).astype(np.float64)
        rows = [np.maximum.reduceat(x @ tokens.T, starts, 1).sum(0) for x in self.queries]
        result: Doubles = np.stack(rows)
        return result


def compare_token_vectors(reference: TokenVectors, other: TokenVectors) -> VectorComparison:
    """Compares two models' token vectors of the same texts, at least three."""
    expected, actual = (
        _units(np.concatenate([*vectors.queries, *vectors.documents]))
        for vectors in (reference, other)
    )
    return _vector_comparison(
        (expected * actual).sum(-1), [vectors.scores() for vectors in (reference, other)]
    )


def _vector_comparison(cosines: Doubles, scores: Sequence[Floats | Doubles]) -> VectorComparison:
    """``scores``: those of both models, ``[texts, texts]``."""
    nearest = [_nearest(of_model) for of_model in scores]
    return VectorComparison(
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        retrieval_agreement=float((nearest[0] == nearest[1]).mean()),
    )


def _units(vectors: Floats) -> Doubles:
    x = vectors.astype(np.float64)
    units: Doubles = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return units


def _nearest(scores: Floats | Doubles) -> Ids:
    """For each row, the column of the highest score off the diagonal."""
    others = scores.copy()
    np.fill_diagonal(others, -np.inf)
    result: Ids = others.argmax(-1)
    return result


@dataclass(frozen=True)
class DecisionComparison:
    """``agreement``: share of equal decisions. ``max_difference``: of their probabilities."""

    num_decisions: int
    agreement: float
    max_difference: float


def compare_decisions(
    reference: Sequence[Doubles], other: Sequence[Doubles], *, multiple: bool = False
) -> DecisionComparison:
    """Compares probabilities ``[..., options]``, one array per text.

    Args:
        multiple: each option is a decision of its own, with the threshold 1/2; otherwise, the most
            probable option is the decision.
    """
    equal: list[NDArray[np.bool_]] = []
    differences = []
    for expected, actual in zip(reference, other, strict=True):
        if multiple:
            equal.append(((expected > 0.5) == (actual > 0.5)).ravel())
        else:
            equal.append(np.atleast_1d(expected.argmax(-1) == actual.argmax(-1)).ravel())
        differences.append(np.abs(expected - actual).max())
    decisions = np.concatenate(equal)
    return DecisionComparison(len(decisions), float(decisions.mean()), float(np.max(differences)))


def chrf(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The corpus chrF of ``outputs`` in percent (Popović 2015), as sacrebleu computes it.

    Character n-grams of up to 6 characters without spaces; recall counts twice.
    """
    totals = np.zeros((CHRF_ORDER, 3))  # numbers of n-grams: in outputs, in references, in both
    for output, reference in zip(outputs, references, strict=True):
        texts = ["".join(text.split()) for text in (output, reference)]
        for order in range(1, CHRF_ORDER + 1):
            first, second = (_ngrams(text, order) for text in texts)
            counts = (first.total(), second.total(), (first & second).total())
            # sacrebleu too counts an output's n-grams only if the reference has any.
            totals[order - 1] += counts if counts[1] else (0, 0, 0)
    present = totals[(totals[:, 0] > 0) & (totals[:, 1] > 0)]
    if not len(present):
        return 0.0
    precision = (present[:, 2] / present[:, 0]).mean()
    recall = (present[:, 2] / present[:, 1]).mean()
    if precision + recall == 0:
        return 0.0
    factor = CHRF_BETA**2
    return float(100 * (1 + factor) * precision * recall / (factor * precision + recall))


def _ngrams(text: str, order: int) -> Counter[str]:
    return Counter(text[start : start + order] for start in range(len(text) - order + 1))
