"""Reductions over rows of logits on the host, with native kernels or, without them, NumPy."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.runtime.kernels import logits as logits_kernels

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]

# The number of values per block in the search for the largest ones.
_BLOCK = 128


class TopTokens(NamedTuple):
    """The likeliest tokens of a row of logits, likeliest first, without impossible ones (-inf).

    ``logprobs``: their log-probabilities. ``total``: the log-sum-exp of the row. ``target``: the
    log-probability of the row's target in :meth:`server.engine.decoding.logits.Logits.top`; without
    targets, that of the likeliest token.
    """

    tokens: list[int]
    logprobs: list[float]
    total: float = 0.0
    target: float = 0.0


def log_sum_exp(logits: Floats) -> float:
    """Computes ``log(sum(exp(logits)))`` of ``[vocabulary]`` without overflow; NaN if any is."""
    total = logits_kernels.log_sum_exp(logits)
    if total is not None:
        return total
    best = logits.max()
    return float(best) + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))


def top_indices(row: Floats, count: int) -> Indices:
    """Returns the indices of the ``count`` largest of ``row [n]``, largest first; at most ``n``.

    The NumPy version sorts only the values that reach the ``count``-th largest maximum of its
    blocks, which is at most the ``count``-th largest value. That is several times faster than a
    partition of a whole vocabulary. Block ``i`` has every ``num_blocks``-th value from ``i`` on, so
    that NumPy finds all maxima in one pass over contiguous memory.
    """
    found = logits_kernels.top_indices(row, count)
    if found is not None:
        return found
    num_blocks = len(row) // _BLOCK
    if count >= num_blocks:
        return np.argsort(-row, kind="stable")[:count]
    tail = row[num_blocks * _BLOCK :]
    maxima = row[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(0)
    if len(tail):
        maxima = np.append(maxima, tail.max())
    threshold = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    candidates = np.flatnonzero(row >= threshold)
    return candidates[np.argsort(-row[candidates], kind="stable")[:count]]


def top_tokens(row: Floats, count: int, total: float = 0.0) -> TopTokens:
    """Returns the ``count`` likeliest tokens of ``row [vocabulary]``.

    ``total``: the log-sum-exp of a row of logits; 0 if they are log-probabilities already.
    """
    ids = top_indices(row, count)
    values = row[ids]
    possible = values > -np.inf
    logprobs = values[possible].astype(np.float64) - total
    return TopTokens(ids[possible].tolist(), logprobs.tolist(), total)


def top_tokens_of(rows: Sequence[Floats], count: int) -> list[TopTokens]:
    """Returns :func:`top_tokens` of rows of logits ``[vocabulary]``, in one call if possible."""
    found = logits_kernels.top_tokens(rows, count)
    if found is None:
        return [top_tokens(row, count, log_sum_exp(row)) for row in rows]
    ids, logprobs = found.indices.tolist(), found.logprobs.tolist()
    possible = found.logprobs != -np.inf  # true in a row with NaN, whose total is NaN too
    if not possible.all():
        sizes = possible.sum(1).tolist()
        ids = [row[:size] for row, size in zip(ids, sizes, strict=True)]
        logprobs = [row[:size] for row, size in zip(logprobs, sizes, strict=True)]
    return list(map(TopTokens, ids, logprobs, found.log_sum_exps.tolist()))
