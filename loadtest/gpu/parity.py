"""Compares tokens and vectors with those of the reference. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtest.compare.fidelity import of_vectors


def compare_logprobs(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float
) -> dict[str, Any]:
    """Compares greedy tokens and their log-probabilities.

    A token is right if the reference's log-probability of it is within ``tolerance`` of the best
    one: ties may be resolved either way.

    Args:
        ours: ``logprobs`` of our tokens; rows may be empty.
        theirs: ``logprobs`` of the same tokens, and the ``best`` log-probability at each step.
    """
    mine, reference, best = (
        np.concatenate([np.asarray(row, np.float64) for row in rows])
        for rows in (ours["logprobs"], theirs["logprobs"], theirs["best"])
    )
    behind = float((best - reference).max())
    error = float(np.abs(mine - reference).max()) if mine.size else None
    return {
        "tokens": int(reference.size),
        "max_logprob_error": error,
        "likeliest_of_the_reference": int((reference >= best - 1e-6).sum()),
        "most_behind_the_likeliest": behind,
        "tolerance": tolerance,
        "passed": behind <= tolerance and (error is None or error <= tolerance),
    }


def compare_totals(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], tolerance: float
) -> dict[str, Any]:
    """Compares the results of beam searches by their mean log-probabilities.

    Both are the reference's, of our tokens and of those that its own search found. Where
    candidates are about as good, ours may be other ones, but not worse ones.
    """
    behind = [float(np.mean(best) - np.mean(mine)) for mine, best in zip(ours, theirs, strict=True)]
    worst = max(behind)
    return {
        "tokens": sum(map(len, ours)),
        "most_behind_the_likeliest": worst,
        "tolerance": tolerance,
        "passed": worst <= tolerance,
    }


def dense(
    values: Sequence[Sequence[float]], indices: Sequence[Sequence[int]], size: int
) -> list[list[float]]:
    """Sparse vectors, given by ``values`` at ``indices``, as dense ones of ``size``."""
    found = np.zeros((len(values), size))
    for row, (each, where) in enumerate(zip(values, indices, strict=True)):
        found[row, list(where)] = each
    rows: list[list[float]] = found.tolist()
    return rows


def compare_vectors(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], tolerance: float
) -> dict[str, Any]:
    """Compares vectors, both ``[N, H]``, by the lowest cosine similarity."""
    cosine = of_vectors(ours, theirs)["min_cosine"]
    return {
        "vectors": len(ours),
        "min_cosine": cosine,
        "tolerance": tolerance,
        "passed": bool(1 - cosine <= tolerance),
    }
