"""The sampling methods as ONNX nodes: greedy, multinomial, top-k and nucleus.

Each function adds nodes that select a token for each row, and the conditions under which that
token is certain to be the host's (see :mod:`server.engine.gpu.sampler_graph`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from server.engine.gpu.sampler_inputs import (
    MIN_P,
    PARAMETERS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    UNIFORM,
    LogitsSpec,
    SamplingMethod,
)
from server.engine.gpu.sampler_nodes import Nodes

# Half-widths of the intervals, relative to the sums. Two sums of at most a million doubles differ
# by at most 1e-10; the host's sum of float32 exponentials by 3e-7, or 2.5 ulp of each term.
_DOUBLE_ERROR = 1e-10
_SINGLE_ERROR = 1e-6

# Finite logits are smaller in magnitude (float32 ends at 3.4e38).
_MAX_FINITE = 3e38

# Tokens per block: in the search for the most likely tokens, and in a draw from all tokens.
_RANK_BLOCK = 16
_DRAW_BLOCK = 256


class Selection(NamedTuple):
    """A token ``[n, 1]``, and the conditions ``[n, 1]`` under which it is the host's token."""

    token: str
    certain: list[str]


def _greedy(nodes: Nodes, logits: str, spec: LogitsSpec, _is_unedited: bool) -> Selection:
    """Selects the lowest id among the largest logits, as NumPy's ``argmax`` does."""
    best = nodes.reduce("ReduceMax", logits)
    ids = nodes.constant(np.arange(spec.vocabulary, dtype=np.float32)[None])
    none = nodes.constant(np.float32(spec.vocabulary))
    found = nodes.add("Where", nodes.add("Equal", logits, best), ids, none)
    first = nodes.reduce("ReduceMin", found)
    certain = [is_finite(nodes, logits, best), nodes.add("Less", first, none)]
    return Selection(nodes.cast(first, TensorProto.INT64), certain)


def _multinomial(nodes: Nodes, logits: str, spec: LogitsSpec, _is_unedited: bool) -> Selection:
    """Draws a block by the blocks' sums, then a token within that block."""
    num_blocks = -(-spec.vocabulary // _DRAW_BLOCK)
    logits = _padded(nodes, logits, spec, num_blocks * _DRAW_BLOCK)
    best = nodes.reduce("ReduceMax", logits)
    weights = _weights(nodes, nodes.add("Sub", logits, best))
    blocks = nodes.reshape(weights, -1, num_blocks, _DRAW_BLOCK)
    block_sums = nodes.reduce("ReduceSum", blocks, 2, keep=False)
    sums = nodes.cumulative_sum(block_sums)
    total = nodes.slice(sums, num_blocks - 1, num_blocks)
    bounds = nodes.add("Mul", nodes.interval(_parameter(nodes, UNIFORM), _DOUBLE_ERROR), total)
    block, same_block = nodes.agreement(nodes.count_where(sums, "LessOrEqual", bounds))
    is_within = nodes.add("Less", block, nodes.constant(np.int64(num_blocks)))
    block = nodes.add("Min", block, nodes.constant(np.int64(num_blocks - 1)))
    inside = nodes.add("GatherND", blocks, nodes.reshape(block, -1, 1, 1), batch_dims=1)
    before = nodes.add("Sub", nodes.gather(sums, block), nodes.gather(block_sums, block))
    inner = nodes.add("Add", nodes.cumulative_sum(nodes.reshape(inside, -1, _DRAW_BLOCK)), before)
    token, same_token = nodes.agreement(nodes.count_where(inner, "LessOrEqual", bounds))
    is_inside = nodes.add("Less", token, nodes.constant(np.int64(_DRAW_BLOCK)))
    first = nodes.add("Mul", block, nodes.constant(np.int64(_DRAW_BLOCK)))
    # A NaN or an infinity in any logit makes the total NaN.
    is_number = nodes.add("Equal", total, total)
    certain = [is_number, same_block, is_within, same_token, is_inside]
    return Selection(nodes.add("Add", first, token), certain)


def _top_k(nodes: Nodes, logits: str, spec: LogitsSpec, is_unedited: bool) -> Selection:
    values, ids = _candidates(nodes, logits, spec)
    weights = _weights(nodes, _below_best(nodes, values))
    sums = nodes.cumulative_sum(weights)
    count = nodes.cast(_parameter(nodes, TOP_K), TensorProto.INT64)
    total = nodes.gather(sums, nodes.add("Sub", count, nodes.constant(np.int64(1))))
    best = nodes.slice(values, 0, 1)
    certain = [is_finite(nodes, logits, best)] if is_unedited else []
    ranked = _Ranked(values, ids, weights, sums, total, _DOUBLE_ERROR)
    token, more = _draw(nodes, ranked, spec, [count])
    return Selection(token, certain + more)


def _nucleus(nodes: Nodes, logits: str, spec: LogitsSpec, _is_unedited: bool) -> Selection:
    values, ids = _candidates(nodes, logits, spec)
    weights = _weights(nodes, _below_best(nodes, values))
    # The host divides in float32; dividing in float64 and rounding gives the same bits.
    difference = nodes.add("Sub", logits, nodes.slice(values, 0, 1))
    temperature = nodes.cast(_parameter(nodes, TEMPERATURE), TensorProto.FLOAT)
    in_double = (nodes.cast(number, TensorProto.DOUBLE) for number in (difference, temperature))
    exponent = nodes.cast(nodes.add("Div", *in_double), TensorProto.FLOAT)
    total = nodes.reduce("ReduceSum", nodes.add("Exp", nodes.cast(exponent, TensorProto.DOUBLE)))
    sums = nodes.cumulative_sum(weights)
    ranked = _Ranked(values, ids, weights, sums, total, _SINGLE_ERROR)
    token, certain = _draw(nodes, ranked, spec, [])
    return Selection(token, [nodes.add("Equal", total, total), *certain])


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The candidates, most likely first: ``[n, candidates]`` each.

    ``weights`` are relative to the first candidate, ``sums`` are cumulative. ``total [n, 1]`` is
    the weight of all tokens; the host's total differs by a factor of at most ``1 ± total_error``.
    """

    values: str
    ids: str
    weights: str
    sums: str
    total: str
    total_error: float


def _draw(nodes: Nodes, ranked: _Ranked, spec: LogitsSpec, limits: list[str]) -> Selection:
    """Counts the candidates that ``top_p`` and ``min_p`` keep, and draws one of them."""
    top_p = nodes.interval(_parameter(nodes, TOP_P), ranked.total_error)
    bounds = nodes.add("Mul", top_p, ranked.total)
    before = nodes.count_where(ranked.sums, "Less", bounds)
    num_nucleus = nodes.add("Add", before, nodes.constant(np.int64(1)))
    factors = nodes.constant(np.array([[1 - _DOUBLE_ERROR, 1 + _DOUBLE_ERROR]]))
    min_weight = nodes.add("Mul", _parameter(nodes, MIN_P), factors)
    num_likely = nodes.count_where(ranked.weights, "GreaterOrEqual", min_weight)
    num_kept, same_kept = nodes.agreement(nodes.add("Min", num_nucleus, num_likely, *limits))
    last = nodes.add("Sub", num_kept, nodes.constant(np.int64(1)))
    certain = [same_kept]
    if spec.num_candidates < spec.vocabulary:
        # A token that is no candidate may be as likely as the last candidate.
        lowest = nodes.slice(ranked.values, spec.num_candidates - 1, spec.num_candidates)
        is_above = nodes.add("Greater", nodes.gather(ranked.values, last), lowest)
        zero = nodes.constant(np.float64(0))
        is_zero = nodes.add("Equal", nodes.gather(ranked.weights, last), zero)
        certain.append(nodes.add("Or", is_above, is_zero))
    uniform = nodes.interval(_parameter(nodes, UNIFORM), _DOUBLE_ERROR)
    bounds = nodes.add("Mul", uniform, nodes.gather(ranked.sums, last))
    drawn, same_drawn = nodes.agreement(nodes.count_where(ranked.sums, "LessOrEqual", bounds))
    certain += [same_drawn, nodes.add("Less", drawn, num_kept)]
    return Selection(nodes.gather(ranked.ids, nodes.add("Min", drawn, last)), certain)


def _candidates(nodes: Nodes, logits: str, spec: LogitsSpec) -> tuple[str, str]:
    """Finds the largest logits and their ids, ``[n, candidates]``; of equal ones, lower ids first.

    The ``k`` largest values are in the ``k`` blocks with the largest maxima, so two searches of
    few values replace one search of a whole vocabulary. Block ``i`` holds every
    ``num_blocks``-th token from ``i`` on.
    """
    count, width = spec.num_candidates, spec.vocabulary
    num_blocks = -(-width // _RANK_BLOCK)
    if num_blocks > 2 * count:
        width = num_blocks * _RANK_BLOCK
        logits = _padded(nodes, logits, spec, width)
        blocks = nodes.reshape(logits, -1, _RANK_BLOCK, num_blocks)
        _, block = nodes.top_k(nodes.reduce("ReduceMax", blocks, 1, keep=False), count)
        offsets = num_blocks * np.arange(_RANK_BLOCK)[None, :, None]
        index = nodes.add("Unsqueeze", block, nodes.constant(np.array([1])))
        index = nodes.add("Add", index, nodes.constant(offsets))
        index = nodes.reshape(index, -1, _RANK_BLOCK * count)
        values, place = nodes.top_k(nodes.gather(logits, index), count)
        ids = nodes.gather(index, place)
    else:
        values, ids = nodes.top_k(logits, count)
    if count == 1:
        return values, ids
    return values, _ids_in_order(nodes, values, ids, count, width)


def _ids_in_order(nodes: Nodes, values: str, ids: str, count: int, width: int) -> str:
    """Sorts the ids of equal values. ``TopK`` leaves their order to the runtime."""
    differs = nodes.add("Less", nodes.slice(values, 1, count), nodes.slice(values, 0, count - 1))
    group = nodes.cumulative_sum(nodes.cast(differs, TensorProto.INT64))
    group = nodes.add("Mul", group, nodes.constant(np.int64(width)))
    first = nodes.slice(ids, 0, 1)
    rest = nodes.add("Add", group, nodes.slice(ids, 1, count))
    keys = nodes.add("Concat", first, rest, axis=1)
    _, order = nodes.top_k(keys, count, largest=False)
    return nodes.gather(ids, order)


def is_finite(nodes: Nodes, logits: str, best: str = "") -> str:
    """Whether no logit is NaN or +inf, and at least one exceeds -inf: ``[n, 1]``.

    ONNX does not define the maximum of a row with a NaN, but its sum is NaN.

    Args:
        nodes: the graph under construction.
        logits: ``[n, vocabulary]``.
        best: the node of their maximum ``[n, 1]``; empty adds one.
    """
    best = best or nodes.reduce("ReduceMax", logits)
    total = nodes.reduce("ReduceSum", logits)
    return nodes.all_of(
        [
            nodes.add("Equal", total, total),
            nodes.add("Less", best, nodes.constant(np.float32(_MAX_FINITE))),
            nodes.add("Greater", best, nodes.constant(np.float32(-_MAX_FINITE))),
        ]
    )


def _padded(nodes: Nodes, logits: str, spec: LogitsSpec, width: int) -> str:
    """Appends columns of -inf to the logits, up to ``width``."""
    if width == spec.vocabulary:
        return logits
    pads = nodes.constant(np.array([0, 0, 0, width - spec.vocabulary]))
    return nodes.add("Pad", logits, pads, nodes.constant(np.float32(-np.inf)))


def _below_best(nodes: Nodes, values: str) -> str:
    """Subtracts the first value of each row, in float64."""
    in_double = nodes.cast(values, TensorProto.DOUBLE)
    return nodes.add("Sub", in_double, nodes.slice(in_double, 0, 1))


def _weights(nodes: Nodes, difference: str) -> str:
    """Computes ``exp(difference / temperature)`` in float64."""
    in_double = nodes.cast(difference, TensorProto.DOUBLE)
    return nodes.add("Exp", nodes.add("Div", in_double, _parameter(nodes, TEMPERATURE)))


def _parameter(nodes: Nodes, column: int) -> str:
    return nodes.slice(PARAMETERS, column, column + 1)


METHODS: dict[SamplingMethod, Callable[[Nodes, str, LogitsSpec, bool], Selection]] = {
    SamplingMethod.GREEDY: _greedy,
    SamplingMethod.MULTINOMIAL: _multinomial,
    SamplingMethod.TOP_K: _top_k,
    SamplingMethod.NUCLEUS: _nucleus,
}
"""Each takes the nodes, logits ``[n, vocabulary]``, their spec, and whether they are unedited."""
