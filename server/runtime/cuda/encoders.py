"""Fuses attention of encoders, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from server.runtime.cuda.attention_checks import AccuracyCheck, AttentionKernel
from server.runtime.cuda.operands import SUFFIXES, VECTOR, is_vector_size, split_bias
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import ATTENDED_LENGTHS
from server.runtime.rewriting.nodes import DOMAIN, MICROSOFT, attributes_of, native_node
from server.runtime.rewriting.rewrites import Rewrite

_HEAD_SIZES = (32, 64, 96, 128)  # that EncoderAttention takes


def fuse_encoder_attention(graph: GraphIndex, is_accurate: AccuracyCheck) -> Iterator[Rewrite]:
    """Replaces an encoder's attention: ``GroupQueryAttention`` would copy keys and values.

    The native kernel reads packed heads and adds their bias; heads with rotary positions are split
    first. Other head sizes use ``MultiHeadAttention``. With lengths alone, it may leave out queries
    beyond a text's last key. With fp16 and ranges of keys, it runs a kernel that never stores the
    scores (memory-efficient attention in contrib_ops/cuda/bert/multihead_attention.cc). With
    lengths alone, only cuDNN, which is off, and GPUs older than Hopper have such a kernel.

    Attention with rotary positions or grouped heads is replaced too: texts would otherwise attend
    to padding (:mod:`server.runtime.cuda.padding`).

    Args:
        graph: the graph to search.
        is_accurate: see :mod:`server.runtime.cuda.attention_checks`; called only if needed.
    """
    ranges: dict[str, onnx.NodeProto] = {}  # by lengths
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention":
            continue
        heads = _heads_of(graph, node)
        lengths = graph.producer(node, 5, "Sub")
        ones = None if lengths is None else graph.inline_array(lengths.input[1])
        if heads is None or lengths is None or ones is None or np.any(ones != 1):
            continue
        x, bias = split_bias(graph, node.input[0])
        type_ = graph.types[node.output[0]]
        inputs = _Inputs(x, bias, lengths.input[0], node.output[0], type_)
        if heads.size in _HEAD_SIZES and is_accurate(AttentionKernel.NATIVE, type_, heads.size):
            new_nodes = _native_attention(heads, inputs)
        elif inputs.suffix == "Fp16" and is_accurate(
            AttentionKernel.MEMORY_EFFICIENT, type_, heads.size
        ):
            new_nodes = _memory_efficient_attention(heads, inputs, ranges)
        elif graph.is_input(ATTENDED_LENGTHS):
            continue
        else:
            new_nodes = [_split(heads, inputs), _multi_head(heads, inputs, inputs.lengths)]
        yield Rewrite(node, tuple(new_nodes))


class _Heads(NamedTuple):
    """The heads of an attention. ``angles``: the names of the cosines and sines, if it rotates."""

    number: int
    kv_number: int
    size: int
    scale: dict[str, Any]  # the attribute, if there is one
    angles: tuple[str, ...]
    is_interleaved: int


class _Inputs(NamedTuple):
    """The names of an attention's inputs and output ``y``. ``bias`` may be empty."""

    x: str
    bias: str
    lengths: str
    y: str
    type_: int

    @property
    def suffix(self) -> str:
        return SUFFIXES[self.type_]

    @property
    def parts(self) -> list[str]:
        """The names of the split queries, keys and values."""
        return [f"{self.y}.{name}" for name in ("query", "key", "value")]


def _native_attention(heads: _Heads, inputs: _Inputs) -> list[onnx.NodeProto]:
    before, operands = [], [inputs.x, inputs.lengths, inputs.bias]
    kv_number = heads.kv_number
    if heads.angles:
        before.append(_split(heads, inputs))
        query, key, value = inputs.parts
        operands, kv_number = [query, inputs.lengths, "", key, value], heads.number
    attention = native_node(
        f"EncoderAttention{inputs.suffix}",
        operands if operands[-1] else operands[:-1],
        [inputs.y],
        num_heads=heads.number,
        num_kv_heads=kv_number,
        scale=heads.scale.get("scale", 0.0),
    )
    return [*before, attention]


def _memory_efficient_attention(
    heads: _Heads, inputs: _Inputs, ranges: dict[str, onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """Makes an attention over ranges of keys. ``ranges``: the ``KeyRanges`` nodes, by lengths."""
    before = [_split(heads, inputs)]
    if inputs.lengths not in ranges:
        operands, y = [inputs.x, inputs.lengths], f"{inputs.y}.ranges"
        ranges[inputs.lengths] = native_node("KeyRangesFp16", operands, [y])
        before.append(ranges[inputs.lengths])
    return [*before, _multi_head(heads, inputs, ranges[inputs.lengths].output[0])]


def _split(heads: _Heads, inputs: _Inputs) -> onnx.NodeProto:
    x, bias = inputs.x, inputs.bias
    return helper.make_node(
        f"Split{inputs.suffix}",
        [x, bias, *heads.angles] if heads.angles else [x, bias] if bias else [x],
        inputs.parts,
        name=f"{inputs.y}.split",
        domain=DOMAIN,
        num_heads=heads.number,
        num_kv_heads=heads.kv_number,
        is_interleaved=heads.is_interleaved,
    )


def _multi_head(heads: _Heads, inputs: _Inputs, mask: str) -> onnx.NodeProto:
    return helper.make_node(
        "MultiHeadAttention",
        [*inputs.parts, "", mask],
        [inputs.y],
        name=inputs.y,
        domain=MICROSOFT,
        num_heads=heads.number,
        **heads.scale,
    )


def _heads_of(graph: GraphIndex, node: onnx.NodeProto) -> _Heads | None:
    """Returns the heads of a ``GroupQueryAttention``; None if it cannot be replaced."""
    attributes = attributes_of(node)
    type_, size = graph.types.get(node.output[0]), graph.shape(node.output[0])[-1:]
    number = attributes.pop("num_heads")
    heads = _Heads(
        number,
        attributes.pop("kv_num_heads"),
        int(size[0]) // number if is_vector_size(size) else 0,
        {"scale": attributes.pop("scale")} if "scale" in attributes else {},
        tuple(node.input[7:9]) if attributes.pop("do_rotary", 0) else (),
        attributes.pop("rotary_interleaved", 0),
    )
    is_taken = (
        attributes.pop("causal", 1) == 0
        and not attributes
        and not any((*node.input[1:5], *node.input[9:]))
        and not any(graph.is_used(name) for name in node.output[1:] if name)
        and type_ in SUFFIXES
        and is_vector_size(size)
        and is_vector_size((heads.size,))
        and all(_are_angles(graph, name, heads, int(size[0])) for name in heads.angles)
    )
    return heads if is_taken else None


def _are_angles(graph: GraphIndex, name: str, heads: _Heads, size: int) -> bool:
    """Whether ``Split`` takes these angles: it rotates whole vectors of :data:`VECTOR` elements."""
    angles = graph.initializers.get(name)
    if angles is None or len(angles.dims) != 2 or angles.data_type not in SUFFIXES:
        return False
    half = angles.dims[1]
    unit = VECTOR // 2 if heads.is_interleaved else VECTOR
    return half % unit == 0 and 2 * half <= size // heads.number
