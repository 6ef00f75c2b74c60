"""Differences between the outputs of a graph and those of the eager module."""

from collections.abc import Sequence

import numpy as np

from export.decoding import LOWEST_LOGIT
from export.runtime import Floats


def largest_error(actual: Floats, expected: Floats) -> float:
    """The largest absolute difference; NaN if any value is NaN."""
    clipped = (np.maximum(x, LOWEST_LOGIT) for x in (actual, expected))
    return float(np.abs(np.subtract(*clipped)).max())


def largest_relative_error(actual: Floats, expected: Floats) -> float:
    """As :func:`largest_error`; a token vector's error is divided by its norm, if above 1.

    In language models a few tokens have activations of thousands (Sun et al. 2024, Massive
    Activations), so that fp32 keeps only five digits of later values.
    """
    if expected.ndim < 2:
        return largest_error(actual, expected)
    scale = np.maximum(1.0, np.linalg.norm(expected, axis=-1, keepdims=True))
    return largest_error(actual / scale, expected / scale)


def worst_cosine(actual: Sequence[Floats] | Floats, expected: Sequence[Floats] | Floats) -> float:
    """The smallest cosine of a row, or NaN. A row is all tokens or steps of one sequence.

    A row of zeros counts only if all rows are: a text may have no sparse weights.
    """
    pairs = list(zip(actual, expected, strict=True))
    pairs = [(x, y) for x, y in pairs if y.any()] or pairs
    return float(np.min([_cosine(*pair) for pair in pairs]))


def _cosine(actual: Floats, expected: Floats) -> float:
    masked = expected <= LOWEST_LOGIT
    x, y = (np.where(masked, 0, values).astype(np.float64).ravel() for values in (actual, expected))
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
