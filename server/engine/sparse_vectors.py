"""Sparse vectors: a weight for each token of the vocabulary, most of them 0."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.constraint import Floats


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """Positive weights. ``indices``: their token ids, ascending. ``values``: the fp32 weights."""

    indices: npt.NDArray[np.int32]
    values: Floats


def largest_weights(weights: Floats, count: int) -> SparseWeights:
    """Returns the ``count`` largest ``weights [vocabulary]``, or fewer: only those above 0.

    Among equal weights, lower token ids are preferred. The result owns its memory.
    """
    indices = np.flatnonzero(weights > 0)
    if len(indices) > count:
        values = weights[indices]
        least = np.partition(values, -count)[-count]
        is_chosen = values > least
        ties = np.flatnonzero(values == least)
        is_chosen[ties[: count - int(is_chosen.sum())]] = True
        indices = indices[is_chosen]
    return SparseWeights(indices.astype(np.int32), weights[indices])


def weights_of_tokens(
    ids: Sequence[int], weights: Floats, excluded: Sequence[int], count: int
) -> SparseWeights:
    """The highest of ``weights [length]`` of each token id; the ``count`` largest, only above 0.

    ``ids`` are the tokens with these weights; those of ``excluded`` have none.
    """
    unique, places = np.unique(np.asarray(ids, np.int32), return_inverse=True)
    highest = np.zeros(len(unique), np.float32)
    np.maximum.at(highest, places, weights)
    highest[np.isin(unique, excluded)] = 0
    largest = largest_weights(highest, count)
    return SparseWeights(unique[largest.indices], largest.values)
