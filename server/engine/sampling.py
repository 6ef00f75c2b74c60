"""Choosing the next token from logits."""

from collections.abc import Sequence as Rows

import numpy as np

from server.engine.sequence import Floats, Sampling, Sequence


def choose(logits: Floats, rows: Rows[Sequence]) -> list[int | None]:
    """The next token of each row.

    Args:
        logits: ``[rows, vocabulary]``.
        rows: their sequences; a sampled row draws from its own generator, so its
            tokens do not depend on its neighbours.

    Returns:
        A token id per row; ``None`` where the row has no finite maximum (NaN or
        infinity: numpy's argmax finds either).
    """
    best = logits.argmax(axis=-1)
    peaks = logits[np.arange(len(rows)), best]
    finite = np.isfinite(peaks)
    return [
        None
        if not finite[index]
        else int(best[index])
        if row.job.sampling.is_greedy
        else _sample(logits[index], row.job.sampling, row.generator)
        for index, row in enumerate(rows)
    ]


def probabilities(logits: Floats, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """The distribution to draw from.

    Temperature, then the ``top_k`` likeliest, then nucleus sampling (Holtzman et
    al. 2020): the smallest set whose probability reaches ``top_p``.

    Args:
        logits: ``[vocabulary]``.
        sampling: with a temperature above 0.

    Returns:
        Token ids by falling probability, and their probabilities (float64, sum 1).
    """
    size = logits.shape[0]
    if 0 < sampling.top_k < size:
        ids = np.argpartition(logits, size - sampling.top_k)[size - sampling.top_k :]
    else:
        ids = np.arange(size)
    scaled = logits[ids].astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    ids, scaled = ids[order], scaled[order]
    weights = np.exp(scaled - scaled[0])
    weights /= weights.sum()
    if sampling.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
        ids, weights = ids[:keep], weights[:keep]
        weights /= weights.sum()
    return ids, weights


def _sample(logits: Floats, sampling: Sampling, generator: np.random.Generator | None) -> int:
    if generator is None:
        raise ValueError("a sampled sequence needs a generator")
    ids, weights = probabilities(logits, sampling)
    drawn = np.searchsorted(np.cumsum(weights), generator.random(), side="right")
    return int(ids[min(int(drawn), len(ids) - 1)])
