"""IBM model 1 (Brown et al. 1993): the probability of a target token given a source token.

Expectation maximization over all links of a source token and a target token in the same pair. Every
target token may also come from the empty source token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

NUM_ITERATIONS = 5
MAX_LINKS = 20_000_000  # about 1 GB; later pairs are left out
_EMPTY = -1


@dataclass(frozen=True, eq=False)
class LexicalTable:
    """Probabilities ``p(targets[i] | sources[i])``, for the links of the empty token too."""

    sources: Ids
    targets: Ids
    probabilities: npt.NDArray[np.float64]


def lexical_probabilities(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], num_iterations: int = NUM_ITERATIONS
) -> LexicalTable:
    """Trains on ``pairs`` of source and target tokens. The same pairs give the same numbers.

    Returns:
        The links of all source tokens except the empty one.
    """
    sources, targets, places = _links(pairs)
    width = int(targets.max()) + 1
    keys, link = np.unique((sources - _EMPTY) * width + targets, return_inverse=True)
    key_sources = keys // width + _EMPTY
    probabilities = np.ones(len(keys))
    for _ in range(num_iterations):
        weights = probabilities[link]
        weights /= np.bincount(places, weights)[places]
        counts = np.bincount(link, weights)
        totals = np.bincount(key_sources - _EMPTY, counts)
        probabilities = counts / totals[key_sources - _EMPTY]
    is_token = key_sources != _EMPTY
    return LexicalTable(key_sources[is_token], (keys % width)[is_token], probabilities[is_token])


def _links(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Ids, Ids, Ids]:
    """Source token, target token, and position of the target token in the corpus, of each link."""
    sources, targets, places = [], [], []
    num_links = num_places = 0
    for source, target in pairs:
        if num_links and num_links + (len(source) + 1) * len(target) > MAX_LINKS:
            break
        row = np.array([_EMPTY, *source], np.int64)
        sources.append(np.tile(row, len(target)))
        targets.append(np.repeat(np.array(target, np.int64), len(row)))
        places.append(np.repeat(np.arange(num_places, num_places + len(target)), len(row)))
        num_links += len(row) * len(target)
        num_places += len(target)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(places)
