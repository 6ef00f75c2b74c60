"""Choosing tokens from logits, row by row: no row's choice depends on its neighbours."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.engine.decoding.beam import TopTokens
from server.engine.decoding.options import Sampling
from server.runtime.kernels import vocabulary

Floats = npt.NDArray[np.float32]

# Tokens whose logits (after the temperature) lie further below the best one hold at most
# exp(-25) of its probability each: they are looked at only where a rule needs them.
_NEAR = 25.0
# Tokens that are looked at first.
_FEW = 256


class TokenLogprob(NamedTuple):
    """A token's log-probability in the model's own distribution, and the likeliest tokens'."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def greedy(logits: Floats) -> list[int | None]:
    """The likeliest token of each row of ``[rows, vocabulary]``; None where a row is not finite.

    numpy's argmax finds a NaN or an infinity, so its value tells.
    """
    best = logits.argmax(axis=-1)
    finite = np.isfinite(logits[np.arange(len(best)), best])
    return [int(token) if good else None for token, good in zip(best, finite, strict=True)]


def sample(logits: Floats, sampling: Sampling, uniform: float) -> int:
    """A token of ``logits [vocabulary]``, drawn from :func:`probabilities`.

    ``uniform``: a random number from 0 to 1, without 1.
    """
    ids, weights = probabilities(logits, sampling)
    drawn = np.searchsorted(np.cumsum(weights), uniform, side="right")
    return int(ids[min(int(drawn), len(ids) - 1)])


def probabilities(
    logits: Floats, sampling: Sampling
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The distribution to draw from.

    Temperature, the ``top_k`` likeliest, nucleus sampling (Holtzman et al. 2020: the smallest
    set whose probability reaches ``top_p``), at least ``min_p`` of the likeliest token's
    probability (Nguyen et al. 2024), locally typical sampling (Meister et al. 2023: the
    tokens whose information is nearest to the entropy, until they hold ``typical_p``).

    Args:
        logits: ``[vocabulary]``, some of them finite.
        sampling: with a temperature above 0.

    Returns:
        Token ids and their probabilities (float64, sum 1); likeliest first wherever a rule
        restricts them.
    """
    if sampling == _only_temperature(sampling):
        weights = np.exp((logits - logits.max()).astype(np.float64) / sampling.temperature)
        return np.arange(len(logits)), weights / weights.sum()
    best = logits.max()
    mass = None
    if not sampling.top_k:
        rest = np.exp((logits - best) / np.float32(sampling.temperature))
        mass = float(rest.sum(dtype=np.float64))
    for ids in _ranked(logits, sampling):
        weights = np.exp((logits[ids].astype(np.float64) - float(best)) / sampling.temperature)
        weights /= weights.sum() if mass is None else mass
        if _is_enough(weights, sampling):
            break
    if sampling.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), sampling.top_p)) + 1
        ids, weights = ids[:keep], weights[:keep]
        weights = weights / weights.sum()
    if sampling.min_p > 0.0:
        keep = int((weights >= sampling.min_p * weights[0]).sum())
        ids, weights = ids[:keep], weights[:keep]
        weights = weights / weights.sum()
    if sampling.typical_p < 1.0:
        ids, weights = _typical(ids, weights, sampling.typical_p)
    return ids, weights / weights.sum()


def _only_temperature(sampling: Sampling) -> Sampling:
    return Sampling(temperature=sampling.temperature, seed=sampling.seed)


def _ranked(logits: Floats, sampling: Sampling) -> Iterator[npt.NDArray[np.intp]]:
    """The tokens that may be kept, likeliest first: few, and then all that can be.

    Sorting a whole vocabulary costs milliseconds; nearly always, few tokens are kept.
    """
    if 0 < sampling.top_k < len(logits):
        yield top_indices(logits, sampling.top_k)
        return
    if not sampling.top_k and sampling.typical_p == 1.0:
        yield top_indices(logits, _FEW)
    yield _kept_by_rank(logits, sampling)


def _is_enough(weights: npt.NDArray[np.float64], sampling: Sampling) -> bool:
    """Whether no token behind these can be kept."""
    if sampling.top_p < 1.0:
        return bool(np.cumsum(weights)[-1] >= sampling.top_p)
    return bool(weights[-1] < sampling.min_p * weights[0])


def _kept_by_rank(logits: Floats, sampling: Sampling) -> npt.NDArray[np.intp]:
    """The tokens that ``top_p`` or ``min_p`` can keep, or all; likeliest first."""
    if sampling.typical_p == 1.0:
        near = np.flatnonzero(logits >= logits.max() - _NEAR * sampling.temperature)
        lost = np.exp(-_NEAR) * len(logits)  # of the best token's weight, at most
        if lost < min(1.0 - sampling.top_p, 1e-3) or sampling.min_p > np.exp(-_NEAR):
            return near[np.argsort(-logits[near], kind="stable")]
    return np.argsort(-logits, kind="stable")


def _typical(
    ids: npt.NDArray[np.intp], weights: npt.NDArray[np.float64], mass: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    possible = weights > 0
    ids, weights = ids[possible], weights[possible]
    information = -np.log(weights)
    entropy = float((weights * information).sum())
    order = np.argsort(np.abs(information - entropy), kind="stable")
    keep = int(np.searchsorted(np.cumsum(weights[order]), mass)) + 1
    chosen = np.sort(order[:keep])  # likeliest first again
    return ids[chosen], weights[chosen]


# Tokens of a block of a vocabulary, for the search for its largest.
_BLOCK = 128


def top_indices(row: Floats, count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` largest of ``row [n]``, largest first; all if there are fewer.

    The ``count``-th largest maximum of its blocks is no larger than the ``count``-th largest
    value, so only what reaches it is sorted: several times faster than a partition of a
    whole vocabulary. Block ``i`` is every ``num_blocks``-th value from ``i`` on, whose maxima
    numpy finds in one pass over contiguous memory. Where there is a kernel for it, it does it.
    """
    found = vocabulary.top_indices(row, count)
    if found is not None:
        return found
    num_blocks = len(row) // _BLOCK
    if count >= num_blocks:
        return np.argsort(-row, kind="stable")[:count]
    tail = row[num_blocks * _BLOCK :]
    maxima = row[: num_blocks * _BLOCK].reshape(_BLOCK, num_blocks).max(0)
    if len(tail):
        maxima = np.append(maxima, tail.max())
    least = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    reach = np.flatnonzero(row >= least)
    return reach[np.argsort(-row[reach], kind="stable")[:count]]


def top_tokens(log_probs: Floats, count: int, total: float = 0.0) -> TopTokens:
    """The ``count`` likeliest tokens of ``log_probs [vocabulary]``; none that is impossible.

    ``total`` is subtracted from each: :func:`log_sum_exp` of what are logits still.
    """
    ids = top_indices(log_probs, count)
    values = log_probs[ids]
    possible = values > -np.inf
    logprobs = values[possible].astype(np.float64) - total
    return TopTokens(ids[possible].tolist(), logprobs.tolist(), total)


def top_tokens_of(rows: Sequence[Floats], count: int) -> list[TopTokens]:
    """:func:`top_tokens` of logits ``[vocabulary]`` each, with their totals."""
    found = vocabulary.likeliest(rows, count)
    if found is None:
        return [top_tokens(row, count, log_sum_exp(row)) for row in rows]
    ids, logprobs = found.places.tolist(), found.logprobs.tolist()
    if math.isinf(found.logprobs.min(initial=0.0)):
        sizes = (found.logprobs > -np.inf).sum(1).tolist()
        ids = [row[:size] for row, size in zip(ids, sizes, strict=True)]
        logprobs = [row[:size] for row, size in zip(logprobs, sizes, strict=True)]
    return list(map(TopTokens, ids, logprobs, found.totals.tolist()))


def log_sum_exp(logits: Floats) -> float:
    """``log(sum(exp(logits)))`` of ``[vocabulary]``, without overflow."""
    total = vocabulary.log_sum_exp(logits)
    if total is not None:
        return total
    best = logits.max()
    return float(best) + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))


def log_probabilities(logits: Floats) -> Floats:
    """``log softmax`` of each row of ``[..., vocabulary]``."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def token_logprob(logits: Floats, token: int, num_top: int) -> TokenLogprob:
    """Of ``token`` in the distribution of ``logits [vocabulary]``, and of the likeliest tokens."""
    total = log_sum_exp(logits)
    top = top_indices(logits, num_top) if num_top else ()
    return TokenLogprob(
        float(logits[token]) - total, tuple((int(id_), float(logits[id_]) - total) for id_ in top)
    )
