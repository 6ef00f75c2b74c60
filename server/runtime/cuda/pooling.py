"""Finds the means of a text's tokens, for :mod:`server.runtime.cuda.rewrite`.

ONNX Runtime computes sums along an axis with cuDNN, in several kernels for each.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from server.runtime.kernels.graph import LENGTHS, GraphIndex
from server.runtime.kernels.pooling import sums_tokens

_WIDE = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


class PooledMean(NamedTuple):
    """A mean in fp32 of the tokens of each text, without padding.

    Attributes:
        last: the node that gives it.
        x: the tokens ``[texts, length, size]``.
        lengths: of the texts.
        min_norm: the least divisor, else the mean's norm; None if it is not normalized.
        dropped: nodes that compute nothing else.
    """

    last: onnx.NodeProto
    x: str
    lengths: str
    min_norm: float | None
    dropped: tuple[onnx.NodeProto, ...]


def pooled_means(graph: GraphIndex) -> Iterator[PooledMean]:
    """The means in a graph whose tokens are 16-bit floats."""
    for node in graph.nodes:
        if not sums_tokens(graph, node):
            continue
        mean, x = graph.only_consumer(node, "Div"), _masked(graph, node)
        if mean is None or x is None or mean.input[0] != node.output[0]:
            continue
        tokens, lengths = x
        if _lengths(graph, mean.input[1]) != lengths or node.output[0] in graph.outputs:
            continue
        last, min_norm = _normalized(graph, mean)
        yield PooledMean(last, tokens, lengths, min_norm, _only_for(graph, last))


def _masked(graph: GraphIndex, sum_: onnx.NodeProto) -> tuple[str, str] | None:
    """The tokens of which ``sum_`` adds those that are not padding, and their lengths."""
    keeps = next((item.i for item in sum_.attribute if item.name == "keepdims"), 1)
    product = _uncast(graph, sum_.input[0])
    if keeps or product is None or product.op_type != "Mul":
        return None
    for x, mask in (product.input, reversed(product.input)):
        unsqueezed = _uncast(graph, mask)
        if graph.types.get(x) not in _WIDE or not _is(unsqueezed, "Unsqueeze"):
            continue
        assert unsqueezed is not None
        axes = graph.inline_array(unsqueezed.input[1])
        less = graph.producer(unsqueezed, 0, "Less")
        if less is None or axes is None or axes.tolist() not in ([2], [-1]):
            continue
        lengths = _lengths(graph, less.input[1])
        if lengths and _counts(graph, less.input[0]) and graph.lengths_of(x) == lengths:
            return x, lengths
    return None


def _counts(graph: GraphIndex, name: str) -> bool:
    """Whether a value is 0, 1, 2, …"""
    node = graph.producers.get(name)
    if not _is(node, "Range"):
        return False
    assert node is not None
    start, step = graph.inline_array(node.input[0]), graph.inline_array(node.input[2])
    return start is not None and step is not None and (int(start), int(step)) == (0, 1)


def _lengths(graph: GraphIndex, name: str) -> str:
    """The input of lengths of which a value is a column, or ""."""
    node = _uncast(graph, name)
    if not _is(node, "Unsqueeze"):
        return ""
    assert node is not None
    axes = graph.inline_array(node.input[1])
    is_column = axes is not None and axes.tolist() in ([1], [-1])
    return node.input[0] if is_column and node.input[0] in LENGTHS else ""


def _normalized(graph: GraphIndex, mean: onnx.NodeProto) -> tuple[onnx.NodeProto, float | None]:
    """The node that divides ``mean`` by its norm, and the least norm; else ``mean`` and None."""
    name, readers = mean.output[0], graph.consumers(mean.output[0])
    norm = next((node for node in readers if node.op_type == "ReduceL2"), None)
    last = next((node for node in readers if node.op_type == "Div"), None)
    clip = graph.only_consumer(norm, "Clip")
    expand = graph.only_consumer(clip, "Expand")
    if norm is None or clip is None or last is None or name in graph.outputs or len(readers) != 2:
        return mean, None
    divisor = clip if expand is None else expand
    axes, least = graph.inline_array(norm.input[1]), graph.inline_array(clip.input[1])
    keeps = next((item.i for item in norm.attribute if item.name == "keepdims"), 1)
    if (
        axes is None
        or axes.tolist() not in ([1], [-1])
        or not keeps
        or least is None
        or any(clip.input[2:])
        or list(last.input) != [name, divisor.output[0]]
        or len(graph.consumers(divisor.output[0])) != 1
    ):
        return mean, None
    return last, float(np.float32(least))


def _only_for(graph: GraphIndex, last: onnx.NodeProto) -> tuple[onnx.NodeProto, ...]:
    """The nodes whose results only lead to ``last``."""
    found = {id(last): last}
    waiting = [last]
    while waiting:
        for name in waiting.pop().input:
            node = graph.producers.get(name)
            if node is None or id(node) in found or not graph.outputs.isdisjoint(node.output):
                continue
            readers = [reader for output in node.output for reader in graph.consumers(output)]
            if all(id(reader) in found for reader in readers):
                found[id(node)] = node
                waiting.append(node)
    del found[id(last)]
    return tuple(found.values())


def _uncast(graph: GraphIndex, name: str) -> onnx.NodeProto | None:
    """The node that gives a value, before any ``Cast``."""
    node = graph.producers.get(name)
    while node is not None and node.op_type == "Cast":
        node = graph.producers.get(node.input[0])
    return node


def _is(node: onnx.NodeProto | None, operator: str) -> bool:
    return node is not None and not node.domain and node.op_type == operator
