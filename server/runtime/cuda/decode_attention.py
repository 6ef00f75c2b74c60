"""Replaces attention in decode steps on CUDA: native/cuda/decode_attention.cc."""

from collections.abc import Iterator
from typing import Any

import onnx

from server.runtime.cuda.operands import SUFFIXES
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import MICROSOFT, attributes_of, native_node
from server.runtime.rewriting.rewrites import Rewrite

_HEAD_SIZES = (32, 64, 96, 128, 256)
# Inputs of GroupQueryAttention: how many our operator takes, and which ones a node must have.
_NUM_INPUTS, _REQUIRED = 9, (0, 3, 4, 5, 6)
_KEY, _VALUE, _PAST_KEY, _COS, _SIN = 1, 2, 3, 7, 8
# Attributes that our operator takes, with defaults; those that must have one of these values.
_TAKEN: dict[str, Any] = {
    "do_rotary": 0,
    "rotary_interleaved": 0,
    "local_window_size": -1,
    "scale": 0.0,
    "softcap": 0.0,
}
_FIXED: dict[str, Any] = {
    "smooth_softmax": (0, -1),
    "qk_output": (0,),
    "k_quant_type": (b"NONE",),
    "v_quant_type": (b"NONE",),
    "kv_cache_bit_width": (0,),
}


def replace_decode_attention(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces ``GroupQueryAttention`` in graphs for runs over one new token of each row.

    The cache must have 16-bit floats, and new keys and values must be packed with the queries, or
    absent (cross-attention).
    """
    for node in graph.nodes:
        if node.domain != MICROSOFT or node.op_type != "GroupQueryAttention":
            continue
        if _has_known_attributes(node) and _has_known_inputs(node, graph):
            yield Rewrite(node, (_decode_attention(node, graph),))


def _has_known_attributes(node: onnx.NodeProto) -> bool:
    attributes = attributes_of(node)
    known = {"num_heads", "kv_num_heads", "causal", *_TAKEN, *_FIXED}
    are_fixed = (attributes.get(name, values[0]) in values for name, values in _FIXED.items())
    return attributes.keys() <= known and all(are_fixed)


def _has_known_inputs(node: onnx.NodeProto, graph: GraphIndex) -> bool:
    attributes = attributes_of(node)
    if any(node.input[_NUM_INPUTS:]) or not all(node.input[index] for index in _REQUIRED):
        return False
    if len(node.output) < 3 or any(graph.is_used(name) for name in node.output[3:] if name):
        return False
    has_angles = len(node.input) > _SIN and bool(node.input[_COS] and node.input[_SIN])
    is_packed = not any(node.input[_KEY : _VALUE + 1])
    cache = graph.shape(node.input[_PAST_KEY])
    types = {graph.types.get(name) for name in (node.input[_PAST_KEY], node.output[0])}
    return (
        (not attributes.get("do_rotary", 0) or (has_angles and _is_aligned(graph, node)))
        and (is_packed or attributes.get("causal", 1) == 0)
        and types <= SUFFIXES.keys()
        and len(cache) == 4
        and cache[3] in _HEAD_SIZES
    )


def _is_aligned(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether the rotated part of a head is a multiple of 16 elements."""
    angles = graph.shape(node.input[_COS])
    return len(angles) == 2 and isinstance(angles[1], int) and angles[1] % 8 == 0


def _decode_attention(node: onnx.NodeProto, graph: GraphIndex) -> onnx.NodeProto:
    attributes = attributes_of(node)
    y = node.output[0]
    return native_node(
        f"DecodeAttention{SUFFIXES[graph.types[y]]}",
        node.input,
        [*node.output[:3], f"{y}.parts"],
        num_heads=attributes["num_heads"],
        kv_num_heads=attributes["kv_num_heads"],
        **{name: attributes.get(name, default) for name, default in _TAKEN.items()},
    )
