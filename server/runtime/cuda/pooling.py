"""Fuses the mean over a text's tokens, for :mod:`server.runtime.cuda.rewrite`.

ONNX Runtime computes sums along an axis with cuDNN, in several kernels for each.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from server.runtime.cuda.operands import SUFFIXES, is_vector_size
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import LENGTHS
from server.runtime.rewriting.nodes import attributes_of, native_node
from server.runtime.rewriting.patterns import find_arange, sums_tokens
from server.runtime.rewriting.rewrites import Rewrite

# The widest mean: each thread of a block in native/cuda/encoders.cc has one vector.
_MAX_SIZE = 8192


class _Tokens(NamedTuple):
    """Names of 16-bit floats ``[texts, length, size]``, and of the lengths of the texts."""

    x: str
    lengths: str


class _Mean(NamedTuple):
    """The last node of a mean, and its least divisor, else its norm; None if not normalized."""

    last: onnx.NodeProto
    min_norm: float | None


def fuse_mean_pooling(graph: GraphIndex) -> Iterator[Rewrite]:
    """Means in fp32 of the tokens of each text, without padding."""
    for node in graph.nodes:
        mean = graph.only_consumer(node, "Div") if sums_tokens(graph, node) else None
        tokens = None if mean is None else _masked_tokens(graph, node)
        if mean is None or tokens is None or mean.input[0] != node.output[0]:
            continue
        size = graph.shape(tokens.x)[-1:]
        if _lengths(graph, mean.input[1]) != tokens.lengths:
            continue
        if not is_vector_size(size) or int(size[0]) > _MAX_SIZE:
            continue
        last, min_norm = _normalized(graph, mean)
        new_node = native_node(
            f"Pool{SUFFIXES[graph.types[tokens.x]]}",
            [tokens.x, tokens.lengths],
            last.output[:1],
            is_normalized=int(min_norm is not None),
            min_norm=min_norm or 0.0,
        )
        yield Rewrite(last, (new_node,))


def _masked_tokens(graph: GraphIndex, sum_: onnx.NodeProto) -> _Tokens | None:
    """The tokens of which ``sum_`` adds those that are not padding."""
    product = graph.producers.get(graph.skip(sum_.input[0], "Cast"))
    if attributes_of(sum_).get("keepdims", 1) or product is None or product.op_type != "Mul":
        return None
    for x, mask in (product.input, reversed(product.input)):
        less = graph.producers.get(_unsqueezed(graph, mask, 2))
        if graph.types.get(x) not in SUFFIXES or less is None or less.op_type != "Less":
            continue
        lengths = _lengths(graph, less.input[1])
        is_mask = find_arange(graph, less.input[0]) is not None
        if lengths and is_mask and graph.lengths_of(x) == lengths:
            return _Tokens(x, lengths)
    return None


def _lengths(graph: GraphIndex, name: str) -> str:
    """The input of lengths of which a value is a column, or ""."""
    lengths = _unsqueezed(graph, name, 1)
    return lengths if lengths in LENGTHS else ""


def _unsqueezed(graph: GraphIndex, name: str, axis: int) -> str:
    """The value to which ``name`` adds a last axis, this one, before any ``Cast``; or ""."""
    node = graph.producers.get(graph.skip(name, "Cast"))
    if node is None or node.op_type != "Unsqueeze" or graph.axes(node) not in ([axis], [-1]):
        return ""
    return str(node.input[0])


def _normalized(graph: GraphIndex, mean: onnx.NodeProto) -> _Mean:
    """``mean``, divided by its norm if it is."""
    name, readers = mean.output[0], graph.consumers(mean.output[0])
    norm = next((node for node in readers if node.op_type == "ReduceL2"), None)
    last = next((node for node in readers if node.op_type == "Div"), None)
    clip = graph.only_consumer(norm, "Clip")
    expand = graph.only_consumer(clip, "Expand")
    if norm is None or clip is None or last is None or name in graph.outputs or len(readers) != 2:
        return _Mean(mean, None)
    divisor = clip if expand is None else expand
    min_norm = graph.scalar(clip.input[1])
    is_normalized = (
        graph.axes(norm) in ([1], [-1])
        and attributes_of(norm).get("keepdims", 1)
        and not any(clip.input[2:])
        and list(last.input) == [name, divisor.output[0]]
        and len(graph.consumers(divisor.output[0])) == 1
    )
    return _Mean(last, min_norm) if is_normalized and min_norm is not None else _Mean(mean, None)
