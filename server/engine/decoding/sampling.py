"""Sampling from one row of logits, independent of the other rows of a batch."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from server.constraint import Floats
from server.engine.decoding.options import Sampling
from server.runtime import host_ops
from server.runtime.host_ops import TopTokens

# A token whose scaled logit is this far below the best has at most exp(-25) of the best token's
# probability. Such tokens are sorted only if a rule may keep them.
_MAX_GAP = 25.0
# How many tokens to sort at first, by probability and by typicality. They are nearly always enough.
_FIRST_CANDIDATES, _FIRST_TYPICAL = 256, 4096


class TopLogprobs(Sequence[tuple[int, float]]):
    """Pairs ``(token id, log-probability)``, in 12 bytes each instead of 120 as Python objects.

    Updates stay in memory until the client reads its stream.
    """

    __slots__ = ("_ids", "_logprobs")

    def __init__(self, ids: Iterable[int], logprobs: Iterable[float]) -> None:
        self._ids, self._logprobs = array("i", ids), array("d", logprobs)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._ids, self._logprobs, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...
    @overload
    def __getitem__(self, index: slice) -> "TopLogprobs": ...
    def __getitem__(self, index: int | slice) -> "tuple[int, float] | TopLogprobs":
        if isinstance(index, slice):
            return TopLogprobs(self._ids[index], self._logprobs[index])
        return self._ids[index], self._logprobs[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopLogprobs):
            return NotImplemented
        return self._ids == other._ids and self._logprobs == other._logprobs

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TopLogprobs({list(self)})"


NO_TOP = TopLogprobs((), ())


class TokenLogprob(NamedTuple):
    """A token's log-probability before sampling and, by default, before logits processors.

    ``top``: the likeliest tokens at its position.
    """

    logprob: float
    top: TopLogprobs = NO_TOP


def sample(logits: Floats, sampling: Sampling, uniform: float) -> int:
    """Draws a token of ``logits [vocabulary]`` from :func:`probabilities`.

    ``uniform``: a random number in [0, 1).
    """
    ids, weights = probabilities(logits, sampling)
    drawn = np.searchsorted(np.cumsum(weights), uniform, side="right")
    return int(ids[min(int(drawn), len(ids) - 1)])


def probabilities(
    logits: Floats, sampling: Sampling
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Returns the distribution to draw from.

    The rules apply in this order: temperature; the ``top_k`` likeliest tokens; nucleus sampling
    (Holtzman et al. 2020: the smallest set whose probability reaches ``top_p``); tokens with at
    least ``min_p`` of the likeliest one's probability (Nguyen et al. 2024); locally typical
    sampling (Meister et al. 2023: the tokens whose information is nearest to the entropy, until
    their probability reaches ``typical_p``).

    Args:
        logits: ``[vocabulary]``, at least one of them finite.
        sampling: the options; the temperature must be above 0.

    Returns:
        Token ids and their probabilities (float64, sum 1): likeliest first if a rule restricts
        the tokens, else in the order of ids.
    """
    if sampling == _only_temperature(sampling):
        weights = np.exp((logits - logits.max()).astype(np.float64) / sampling.temperature)
        return np.arange(len(logits)), weights / weights.sum()
    best = logits.max()
    mass = None
    if not 0 < sampling.top_k < len(logits):
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
    """Yields candidates, likeliest first if that matters: first a few, then all that can be kept.

    Sorting a whole vocabulary takes milliseconds, and the rules usually keep few tokens.
    """
    if 0 < sampling.top_k < len(logits):
        yield host_ops.top_indices(logits, sampling.top_k)
        return
    if sampling.top_p < 1.0 or sampling.min_p > 0.0:
        yield host_ops.top_indices(logits, _FIRST_CANDIDATES)
        yield _kept_by_rank(logits, sampling)
    else:  # the order does not matter to typical sampling
        yield np.arange(len(logits))


def _is_enough(weights: npt.NDArray[np.float64], sampling: Sampling) -> bool:
    """Whether the rules can keep no further, less likely token."""
    if sampling.top_p < 1.0:
        return bool(np.cumsum(weights)[-1] >= sampling.top_p)
    return bool(weights[-1] < sampling.min_p * weights[0])


def _kept_by_rank(logits: Floats, sampling: Sampling) -> npt.NDArray[np.intp]:
    """Returns the tokens that ``top_p`` or ``min_p`` can keep, or all; likeliest first."""
    near = np.flatnonzero(logits >= logits.max() - _MAX_GAP * sampling.temperature)
    lost = np.exp(-_MAX_GAP) * len(logits)  # at most, as a multiple of the best token's weight
    if lost < min(1.0 - sampling.top_p, 1e-3) or sampling.min_p > np.exp(-_MAX_GAP):
        return near[np.argsort(-logits[near], kind="stable")]
    return np.argsort(-logits, kind="stable")


def _typical(
    ids: npt.NDArray[np.intp], weights: npt.NDArray[np.float64], mass: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    possible = weights > 0
    ids, weights = ids[possible], weights[possible]
    information = -np.log(weights)
    entropy = float((weights * information).sum())
    distance = np.abs(information - entropy)
    for count in (_FIRST_TYPICAL, len(ids)):
        nearest = _smallest(distance, count)
        keep = int(np.searchsorted(np.cumsum(weights[nearest]), mass)) + 1
        if keep <= len(nearest):
            break
    chosen = np.sort(nearest[:keep])
    chosen = chosen[np.argsort(-weights[chosen], kind="stable")]  # likeliest first
    return ids[chosen], weights[chosen]


def _smallest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Returns the indices of the ``count`` smallest values, in order; equal ones by index."""
    if count >= len(values):
        return np.argsort(values, kind="stable")
    indices = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    return indices[np.argsort(values[indices], kind="stable")[:count]]


def log_probabilities(logits: Floats) -> Floats:
    """Computes ``log softmax`` of each row of ``[..., vocabulary]``."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def logprobs_of(logits: Floats, ids: Sequence[int]) -> tuple[float, ...]:
    """Returns the log-probabilities of the tokens ``ids`` under ``logits [vocabulary]``."""
    return tuple((logits[list(ids)].astype(np.float64) - host_ops.log_sum_exp(logits)).tolist())


def token_logprob(logits: Floats, token: int, num_top: int) -> TokenLogprob:
    """Returns the log-probability of ``token`` under ``logits [vocabulary]``, with the top tokens.

    There are fewer than ``num_top`` of them if a shortlist has fewer.
    """
    total = host_ops.log_sum_exp(logits)
    logprob = float(logits[token]) - total
    if not num_top:
        return TokenLogprob(logprob)
    return logprob_in_top(logprob, host_ops.top_tokens(logits, num_top, total), num_top)


def logprob_in_top(logprob: float, top: TopTokens, num_top: int) -> TokenLogprob:
    """Builds a :class:`TokenLogprob` for a token whose log-probability is known.

    ``top``: the likeliest tokens, at least ``num_top``.
    """
    if not num_top:
        return TokenLogprob(logprob)
    return TokenLogprob(logprob, TopLogprobs(top.tokens[:num_top], top.logprobs[:num_top]))
