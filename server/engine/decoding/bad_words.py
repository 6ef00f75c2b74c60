"""Words that are never generated, as sequences of token ids."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_NONE = np.empty(0, np.int64)


class BadWordIds:
    """Finds the tokens that would complete a bad word. All jobs of a request share one.

    A step looks up one tail of the sequence for each length of word, so its time does not depend on
    the number of words.

    ``words``: distinct sequences of token ids, at least one id each.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        last_ids: dict[tuple[int, ...], list[int]] = {}
        for *before, last in words:
            last_ids.setdefault(tuple(before), []).append(last)
        self._last_ids = {before: np.array(ids, np.int64) for before, ids in last_ids.items()}
        self._sizes = sorted({len(before) for before in last_ids})

    def completing(self, ids: Sequence[int], num_generated: int) -> npt.NDArray[np.int64]:
        """The distinct token ids that would complete a bad word after ``ids``.

        ``num_generated``: only these last tokens of ``ids`` can be part of one.
        """
        found = [
            self._last_ids.get(tuple(ids[len(ids) - size :]), _NONE)
            for size in self._sizes
            if size <= num_generated
        ]
        return np.unique(np.concatenate(found or [_NONE]))
