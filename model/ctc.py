"""Greedy decoding with connectionist temporal classification (Graves et al. 2006). No torch."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class TokenRun(NamedTuple):
    """A token that successive frames repeat, from ``start`` to before ``stop``."""

    token: int
    start: int
    stop: int


def token_runs(best: npt.NDArray[np.integer], blank: int) -> list[TokenRun]:
    """The text of ``best [frames]``, the best token of each frame (section 3.2, best path).

    Repeated tokens are one, then blanks are dropped: a blank is between two equal letters.
    """
    bounds = np.flatnonzero(np.diff(best)) + 1
    starts, stops = [0, *bounds.tolist()], [*bounds.tolist(), len(best)]
    runs = (TokenRun(int(best[i]), i, j) for i, j in zip(starts, stops, strict=True) if i < j)
    return [run for run in runs if run.token != blank]
