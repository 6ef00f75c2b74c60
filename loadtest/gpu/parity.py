"""Whether tokens and vectors are those of the reference. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtest.compare.measurements import min_cosine


def compare_logprobs(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float
) -> dict[str, Any]:
    """Greedy tokens and their log-probabilities.

    ``theirs`` has, for the same tokens, ``logprobs`` and the ``best`` that any had: a token that
    is as good as the best within ``tolerance`` is right, since ties fall either way. ``ours``
    may tell none.
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


def compare_vectors(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], tolerance: float
) -> dict[str, Any]:
    """The worst cosine of a vector to the reference's."""
    cosine = min_cosine(ours, theirs)
    return {
        "vectors": len(ours),
        "min_cosine": cosine,
        "tolerance": tolerance,
        "passed": bool(1 - cosine <= tolerance),
    }
