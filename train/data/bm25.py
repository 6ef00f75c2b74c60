"""BM25 (Robertson and Zaragoza 2009), for hard negatives and as a baseline."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75


def words(text: str) -> list[str]:
    """The words and numbers of ``text`` in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


class Bm25:
    """An index of ``documents``."""

    def __init__(self, documents: Sequence[str]) -> None:
        postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = np.zeros(len(documents))
        for index, document in enumerate(documents):
            counts = Counter(words(document))
            lengths[index] = counts.total()
            for word, count in counts.items():
                postings[word].append((index, count))
        norms = K1 * (1 - B + B * lengths / max(1.0, float(lengths.mean())))
        self._size = len(documents)
        self._postings: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for word, found in postings.items():
            rows = np.array([index for index, _ in found])
            counts_of = np.array([count for _, count in found], float)
            inverse = math.log(1 + (self._size - len(found) + 0.5) / (len(found) + 0.5))
            weights = inverse * counts_of * (K1 + 1) / (counts_of + norms[rows])
            self._postings[word] = (rows, weights)

    def scores(self, query: str) -> NDArray[np.float64]:
        """The score of each document for ``query``, ``[documents]``."""
        scores = np.zeros(self._size)
        for word in words(query):
            if word in self._postings:
                rows, weights = self._postings[word]
                scores[rows] += weights
        return scores

    def best(self, query: str, num: int) -> list[int]:
        """Indices of the ``num`` best documents, best first; ties keep their order."""
        scores = self.scores(query)
        rows = np.arange(self._size)
        if num < self._size:  # sorts only the candidates
            rows = np.flatnonzero(scores >= np.partition(scores, -num)[-num])
        order = rows[np.argsort(-scores[rows], kind="stable")][:num]
        return [int(index) for index in order]
