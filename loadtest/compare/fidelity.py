"""How close outputs are to those of fp32. Pure functions on arrays and texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CHRF_ORDER = 6
CHRF_BETA = 2.0

Fidelity = dict[str, float]


def of_scores(found: Mapping[str, Any], reference: Mapping[str, Any]) -> Fidelity:
    """Teacher-forced tokens: how often the likeliest is the same, and how far their scores are.

    Args:
        found: ``logprobs`` of the same tokens (natural), and the likeliest token in each place,
            ``top``; a list for each text.
        reference: the same of fp32.

    Returns:
        ``top_1``, a share, and ``rms_nats``, the root of the mean squared difference of the
        log-probabilities.
    """
    mine, exact = (
        np.concatenate([np.asarray(row) for row in each["logprobs"]]) for each in (found, reference)
    )
    top, exact_top = (
        np.concatenate([np.asarray(row) for row in each["top"]]) for each in (found, reference)
    )
    return {
        "top_1": float((top == exact_top).mean()),
        "rms_nats": float(np.sqrt(np.square(mine - exact).mean())),
    }


def of_vectors(found: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> Fidelity:
    """Cosine similarities of vectors at the same index: ``mean_cosine`` and ``min_cosine``.

    Both are ``[N, H]``.
    """
    a, b = np.array(found), np.array(reference)
    cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return {"mean_cosine": float(cosines.mean()), "min_cosine": float(cosines.min())}


def of_texts(found: Sequence[str], reference: Sequence[str]) -> Fidelity:
    """``identical``, the share of equal texts, and ``chrf``, from 0 to 100."""
    pairs = list(zip(found, reference, strict=True))
    return {"chrf": chrf(found, reference), "identical": sum(a == b for a, b in pairs) / len(pairs)}


def chrf(found: Sequence[str], reference: Sequence[str]) -> float:
    """chrF2 of a corpus, without spaces, from 0 to 100.

    Source: Popović, "chrF: character n-gram F-score for automatic MT evaluation", 2015; the
    defaults of sacrebleu.
    """
    counts = np.zeros((CHRF_ORDER, 3))  # n-grams found, in the reference, in both
    for a, b in zip(found, reference, strict=True):
        for order in range(CHRF_ORDER):
            mine, exact = _ngrams(a, order + 1), _ngrams(b, order + 1)
            if exact:  # like sacrebleu, which does not count what cannot match
                counts[order] += mine.total(), exact.total(), (mine & exact).total()
    counts = counts[(counts[:, :2] > 0).all(1)]
    if not len(counts):
        return 0.0
    precision, recall = (counts[:, 2] / counts[:, 0]).mean(), (counts[:, 2] / counts[:, 1]).mean()
    if precision + recall == 0:
        return 0.0
    weight = CHRF_BETA**2
    return float(100 * (1 + weight) * precision * recall / (weight * precision + recall))


def _ngrams(text: str, order: int) -> Counter[str]:
    characters = "".join(text.split())
    return Counter(characters[i : i + order] for i in range(len(characters) - order + 1))


def describe(fidelity: Mapping[str, float]) -> str:
    """As in ``top-1 0.925, rms 0.154``; ``–`` if nothing was measured."""
    parts = [form.format(fidelity[key]) for key, form in _FORMS.items() if key in fidelity]
    return ", ".join(parts) or "–"


_FORMS = {
    "top_1": "top-1 {:.3f}",
    "rms_nats": "rms {:.3f}",
    "mean_cosine": "cosine {:.4f}",
    "min_cosine": "min {:.4f}",
    "chrf": "chrF {:.1f}",
    "identical": "{:.0%} identical",
}
