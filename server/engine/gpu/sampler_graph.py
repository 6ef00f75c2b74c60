"""The choice of tokens as ONNX graphs, so that it can run where the logits are.

A graph says only what it is sure of. Its arithmetic may differ from the host's in the last bits
(another ``exp``, another order of sums), so each comparison that decides is made at both ends of
an interval that holds either result; where the ends differ, the row is left to the host, which
draws with the same uniform number. So the tokens are the host's, whatever the device rounds.

All operators have CUDA kernels: docs/decisions/0085-sampling.md.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.engine.gpu.sampler_nodes import Nodes

UNDECIDED = -1

# A logit that no other is below, and that arithmetic leaves finite.
NEVER = -1e9

# Names of inputs.
LOGITS, ROWS, PARAMETERS, EDIT_IDS, EDIT_VALUES = (
    "logits",
    "rows",
    "parameters",
    "edit_ids",
    "edit_values",
)

# Columns of ``parameters``.
TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = range(5)
# A ``top_p`` that no sum of probabilities reaches: no nucleus.
NO_TOP_P = 4.0

# Relative widths of the intervals. Sums of doubles, at most a million of them, differ by 1e-10
# at most; the host's sum of float32 exponentials by 3e-7: 2.5 units in the last place each.
_DOUBLE = 1e-10
_SINGLE = 1e-6

_LARGE = 3e38
# Tokens of a block, in the search for the likeliest and for the one that is drawn.
_RANK_BLOCK = 16
_DRAW_BLOCK = 256


class SamplingMethod(StrEnum):
    """How a row's token is chosen. Each is a graph of its own."""

    GREEDY = "greedy"
    SPREAD = "spread"  # from the whole vocabulary
    TOP_K = "top_k"  # from the likeliest; top_p and min_p may restrict them further
    NUCLEUS = "nucleus"  # by top_p or min_p


@dataclass(frozen=True, slots=True)
class Variant:
    """What a graph does. ``edits``: changes logits first. ``gathers``: not all rows take part."""

    way: SamplingMethod
    edits: bool = False
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the logits. ``num_candidates``: the likeliest that are looked at one by one.

    ``suppressed``: tokens that are never generated, whose logits become :data:`NEVER`.
    """

    vocabulary: int
    element_type: int = TensorProto.FLOAT
    num_candidates: int = 256
    suppressed: tuple[int, ...] = ()

    @property
    def candidates(self) -> int:
        return min(self.num_candidates, self.vocabulary)


def build(variant: Variant, shape: Shape) -> onnx.ModelProto:
    """A graph that chooses a token for each of ``n`` rows.

    Inputs: ``logits [batch, vocabulary]``; with ``gathers`` ``rows [n]`` int64; unless greedy
    ``parameters [n, 5]`` float64 (columns as named in this module); with ``edits`` ``edit_ids
    [n, m]`` int64, no id twice unless with the same edits, and ``edit_values [n, 3, m]`` float32:
    added, the factor by which a logit is weakened, added after it.

    Output: ``tokens [n]`` int64, :data:`UNDECIDED` where the host has to choose.
    """
    nodes = Nodes()
    logits = _of_rows(nodes, shape, gathers=variant.gathers)
    sure: list[str] = []
    if variant.edits:
        sure.append(_is_finite(nodes, logits))  # what an edit hides is looked at before
        logits = _edited(nodes, logits)
    token, more = _WAYS[variant.way](nodes, logits, shape, not variant.edits)
    undecided = nodes.constant(np.int64(UNDECIDED))
    token = nodes.add("Where", nodes.all([*sure, *more]), token, undecided)
    nodes.add("Reshape", token, nodes.constant(np.array([-1])), output="tokens")
    return nodes.model(_inputs(variant, shape), "tokens", TensorProto.INT64, ["n"])


def build_take(shape: Shape) -> onnx.ModelProto:
    """A graph that gives ``taken [n, vocabulary]`` float32: some ``rows`` of ``logits``."""
    nodes = Nodes()
    nodes.add("Identity", _of_rows(nodes, shape, gathers=True), output="taken")
    inputs = _inputs(Variant(SamplingMethod.GREEDY, gathers=True), shape)
    return nodes.model(inputs, "taken", TensorProto.FLOAT, ["n", shape.vocabulary])


def _inputs(variant: Variant, shape: Shape) -> list[onnx.ValueInfoProto]:
    value = helper.make_tensor_value_info
    inputs = [value(LOGITS, shape.element_type, ["batch", shape.vocabulary])]
    if variant.gathers:
        inputs.append(value(ROWS, TensorProto.INT64, ["n"]))
    if variant.way != SamplingMethod.GREEDY:
        inputs.append(value(PARAMETERS, TensorProto.DOUBLE, ["n", 5]))
    if variant.edits:
        inputs.append(value(EDIT_IDS, TensorProto.INT64, ["n", "m"]))
        inputs.append(value(EDIT_VALUES, TensorProto.FLOAT, ["n", 3, "m"]))
    return inputs


def _of_rows(nodes: Nodes, shape: Shape, *, gathers: bool) -> str:
    """The logits of the rows that take part, as the host has them."""
    logits = LOGITS
    if gathers:
        logits = nodes.add("Gather", logits, ROWS, axis=0)
    if shape.element_type != TensorProto.FLOAT:
        logits = nodes.cast(logits, TensorProto.FLOAT)
    if shape.suppressed:
        mask = np.zeros((1, shape.vocabulary), bool)
        mask[:, list(shape.suppressed)] = True
        never = nodes.constant(np.float32(NEVER))
        logits = nodes.add("Where", nodes.constant(mask), never, logits)
    return logits


def _is_finite(nodes: Nodes, logits: str, best: str = "") -> str:
    """Whether no logit is NaN or +inf, and one is more than -inf: ``[n, 1]``.

    What a maximum makes of a NaN is not said anywhere; a sum of one is NaN.
    """
    best = best or nodes.reduce("ReduceMax", logits)
    total = nodes.reduce("ReduceSum", logits)
    large = nodes.constant(np.float32(_LARGE)), nodes.constant(np.float32(-_LARGE))
    return nodes.all(
        [
            nodes.add("Equal", total, total),
            nodes.add("Less", best, large[0]),
            nodes.add("Greater", best, large[1]),
        ]
    )


def _edited(nodes: Nodes, logits: str) -> str:
    """The edits of ``logits_processors``, in the same order; division rounds as IEEE's."""
    added, factor, then = (
        nodes.reshape(nodes.slice(EDIT_VALUES, column, column + 1), 0, -1) for column in range(3)
    )
    value = nodes.add("Add", nodes.at(logits, EDIT_IDS), added)
    wide = (nodes.cast(number, TensorProto.DOUBLE) for number in (value, factor))
    divided = nodes.cast(nodes.add("Div", *wide), TensorProto.FLOAT)
    is_negative = nodes.add("Less", value, nodes.constant(np.float32(0)))
    value = nodes.add("Where", is_negative, nodes.add("Mul", value, factor), divided)
    value = nodes.add("Add", value, then)
    return nodes.add("ScatterElements", logits, EDIT_IDS, value, axis=1)


_Choice = tuple[str, list[str]]
"""A token ``[n, 1]``, and all that must hold for it to be the host's."""


def _greedy(nodes: Nodes, logits: str, shape: Shape, _is_raw: bool) -> _Choice:
    best = nodes.reduce("ReduceMax", logits)
    ids = nodes.constant(np.arange(shape.vocabulary, dtype=np.float32)[None])
    none = nodes.constant(np.float32(shape.vocabulary))
    found = nodes.add("Where", nodes.add("Equal", logits, best), ids, none)
    first = nodes.reduce("ReduceMin", found)
    sure = [_is_finite(nodes, logits, best), nodes.add("Less", first, none)]
    return nodes.cast(first, TensorProto.INT64), sure


def _spread(nodes: Nodes, logits: str, shape: Shape, _is_raw: bool) -> _Choice:
    """Sums of blocks first, then those within the block that is hit."""
    num_blocks = -(-shape.vocabulary // _DRAW_BLOCK)
    logits = _padded(nodes, logits, shape, num_blocks * _DRAW_BLOCK)
    best = nodes.reduce("ReduceMax", logits)
    weights = _weights(nodes, nodes.add("Sub", logits, best))
    blocks = nodes.reshape(weights, -1, num_blocks, _DRAW_BLOCK)
    block_sums = nodes.reduce("ReduceSum", blocks, 2, keep=False)
    sums = nodes.sums(block_sums)
    total = nodes.slice(sums, num_blocks - 1, num_blocks)
    bounds = nodes.add("Mul", nodes.ends(_parameter(nodes, UNIFORM), _DOUBLE), total)
    block, same_block = nodes.agree(nodes.count(sums, "LessOrEqual", bounds))
    is_within = nodes.add("Less", block, nodes.constant(np.int64(num_blocks)))
    block = nodes.add("Min", block, nodes.constant(np.int64(num_blocks - 1)))
    inside = nodes.add("GatherND", blocks, nodes.reshape(block, -1, 1, 1), batch_dims=1)
    before = nodes.add("Sub", nodes.at(sums, block), nodes.at(block_sums, block))
    inner = nodes.add("Add", nodes.sums(nodes.reshape(inside, -1, _DRAW_BLOCK)), before)
    token, same = nodes.agree(nodes.count(inner, "LessOrEqual", bounds))
    is_inside = nodes.add("Less", token, nodes.constant(np.int64(_DRAW_BLOCK)))
    first = nodes.add("Mul", block, nodes.constant(np.int64(_DRAW_BLOCK)))
    # A NaN or an infinity anywhere makes the total NaN.
    sure = [nodes.add("Equal", total, total), same_block, is_within, same, is_inside]
    return nodes.add("Add", first, token), sure


def _top_k(nodes: Nodes, logits: str, shape: Shape, is_raw: bool) -> _Choice:
    values, ids = _candidates(nodes, logits, shape)
    weights = _weights(nodes, _below_best(nodes, values))
    sums = nodes.sums(weights)
    count = nodes.cast(_parameter(nodes, TOP_K), TensorProto.INT64)
    mass = nodes.at(sums, nodes.add("Sub", count, nodes.constant(np.int64(1))))
    best = nodes.slice(values, 0, 1)
    sure = [_is_finite(nodes, logits, best)] if is_raw else []
    ranked = _Ranked(values, ids, weights, sums, mass, _DOUBLE)
    token, more = _drawn(nodes, ranked, shape, [count])
    return token, sure + more


def _nucleus(nodes: Nodes, logits: str, shape: Shape, _is_raw: bool) -> _Choice:
    values, ids = _candidates(nodes, logits, shape)
    weights = _weights(nodes, _below_best(nodes, values))
    # The host divides in float32, and so does this: doubles divide, float32 rounds.
    difference = nodes.add("Sub", logits, nodes.slice(values, 0, 1))
    temperature = nodes.cast(_parameter(nodes, TEMPERATURE), TensorProto.FLOAT)
    wide = (nodes.cast(number, TensorProto.DOUBLE) for number in (difference, temperature))
    exponent = nodes.cast(nodes.add("Div", *wide), TensorProto.FLOAT)
    mass = nodes.reduce("ReduceSum", nodes.add("Exp", nodes.cast(exponent, TensorProto.DOUBLE)))
    ranked = _Ranked(values, ids, weights, nodes.sums(weights), mass, _SINGLE)
    token, sure = _drawn(nodes, ranked, shape, [])
    return token, [nodes.add("Equal", mass, mass), *sure]


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Of the candidates, likeliest first, ``[n, candidates]``; ``mass [n, 1]`` of all tokens.

    ``weights`` are relative to the first. ``width``: how far the host's mass may be away.
    """

    values: str
    ids: str
    weights: str
    sums: str
    mass: str
    width: float


def _drawn(nodes: Nodes, ranked: _Ranked, shape: Shape, limits: list[str]) -> _Choice:
    """How many are kept, and which of them the uniform number hits."""
    bounds = nodes.add("Mul", nodes.ends(_parameter(nodes, TOP_P), ranked.width), ranked.mass)
    before = nodes.count(ranked.sums, "Less", bounds)
    nucleus = nodes.add("Add", before, nodes.constant(np.int64(1)))
    widths = nodes.constant(np.array([[1 - _DOUBLE, 1 + _DOUBLE]]))
    least = nodes.add("Mul", _parameter(nodes, MIN_P), widths)
    likely = nodes.count(ranked.weights, "GreaterOrEqual", least)
    kept, same_kept = nodes.agree(nodes.add("Min", nucleus, likely, *limits))
    last = nodes.add("Sub", kept, nodes.constant(np.int64(1)))
    sure = [same_kept]
    if shape.candidates < shape.vocabulary:
        # Beyond the candidates there may be more as likely as their last one.
        lowest = nodes.slice(ranked.values, shape.candidates - 1, shape.candidates)
        is_above = nodes.add("Greater", nodes.at(ranked.values, last), lowest)
        zero = nodes.constant(np.float64(0))
        is_nothing = nodes.add("Equal", nodes.at(ranked.weights, last), zero)
        sure.append(nodes.add("Or", is_above, is_nothing))
    uniform = nodes.ends(_parameter(nodes, UNIFORM), _DOUBLE)
    bounds = nodes.add("Mul", uniform, nodes.at(ranked.sums, last))
    drawn, same = nodes.agree(nodes.count(ranked.sums, "LessOrEqual", bounds))
    sure += [same, nodes.add("Less", drawn, kept)]
    return nodes.at(ranked.ids, nodes.add("Min", drawn, last)), sure


def _candidates(nodes: Nodes, logits: str, shape: Shape) -> tuple[str, str]:
    """The likeliest tokens' logits and ids, ``[n, candidates]``; of equal ones, lower ids first.

    The ``k`` largest values are in the ``k`` blocks with the largest maxima: two searches
    through little instead of one through a whole vocabulary. Block ``i`` is every
    ``num_blocks``-th token from ``i`` on.
    """
    count, width = shape.candidates, shape.vocabulary
    num_blocks = -(-width // _RANK_BLOCK)
    if num_blocks > 2 * count:
        width = num_blocks * _RANK_BLOCK
        logits = _padded(nodes, logits, shape, width)
        blocks = nodes.reshape(logits, -1, _RANK_BLOCK, num_blocks)
        _, block = nodes.top(nodes.reduce("ReduceMax", blocks, 1, keep=False), count)
        offsets = num_blocks * np.arange(_RANK_BLOCK)[None, :, None]
        index = nodes.add("Unsqueeze", block, nodes.constant(np.array([1])))
        index = nodes.add("Add", index, nodes.constant(offsets))
        index = nodes.reshape(index, -1, _RANK_BLOCK * count)
        values, place = nodes.top(nodes.at(logits, index), count)
        ids = nodes.at(index, place)
    else:
        values, ids = nodes.top(logits, count)
    if count == 1:
        return values, ids
    # Which of equal values a runtime finds first is its own affair: the order is made here.
    differs = nodes.add("Less", nodes.slice(values, 1, count), nodes.slice(values, 0, count - 1))
    group = nodes.sums(nodes.cast(differs, TensorProto.INT64))
    group = nodes.add("Mul", group, nodes.constant(np.int64(width)))
    first = nodes.slice(ids, 0, 1)
    rest = nodes.add("Add", group, nodes.slice(ids, 1, count))
    keys = nodes.add("Concat", first, rest, axis=1)
    _, order = nodes.top(keys, count, largest=False)
    return values, nodes.at(ids, order)


def _padded(nodes: Nodes, logits: str, shape: Shape, width: int) -> str:
    """With columns of -inf up to ``width``."""
    if width == shape.vocabulary:
        return logits
    pads = nodes.constant(np.array([0, 0, 0, width - shape.vocabulary]))
    return nodes.add("Pad", logits, pads, nodes.constant(np.float32(-np.inf)))


def _below_best(nodes: Nodes, values: str) -> str:
    wide = nodes.cast(values, TensorProto.DOUBLE)
    return nodes.add("Sub", wide, nodes.slice(wide, 0, 1))


def _weights(nodes: Nodes, difference: str) -> str:
    """``exp(difference / temperature)`` in float64."""
    wide = nodes.cast(difference, TensorProto.DOUBLE)
    return nodes.add("Exp", nodes.add("Div", wide, _parameter(nodes, TEMPERATURE)))


def _parameter(nodes: Nodes, column: int) -> str:
    return nodes.slice(PARAMETERS, column, column + 1)


_WAYS = {
    SamplingMethod.GREEDY: _greedy,
    SamplingMethod.SPREAD: _spread,
    SamplingMethod.TOP_K: _top_k,
    SamplingMethod.NUCLEUS: _nucleus,
}
