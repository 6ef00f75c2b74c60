"""Replaces patterns of encoders, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from server.runtime.cuda.attention_checks import Attention, IsRight
from server.runtime.cuda.changes import (
    MICROSOFT,
    SUFFIXES,
    VECTOR,
    Change,
    attributes_of,
    is_vector_size,
    take_bias,
)
from server.runtime.cuda.pooling import pooled_means
from server.runtime.kernels.graph import ATTENDED_LENGTHS, GraphIndex
from server.runtime.kernels.library import DOMAIN

_HEAD_SIZES = (32, 64, 96, 128)  # that our attention takes
# The widest mean: each thread of a block in native/cuda/encoders.cc has one vector.
_MAX_POOLED_SIZE = 8192


def attentions(graph: GraphIndex, is_right: IsRight) -> Iterator[Change]:
    """Replaces an encoder's attention: ``GroupQueryAttention`` would copy keys and values.

    Our kernel reads packed heads and adds their bias; heads with rotary positions are split first.
    Other head sizes use ``MultiHeadAttention``. With lengths alone, it may leave out queries beyond
    a text's last key. With fp16 and ranges of keys, it runs a kernel that never stores the scores
    (memory-efficient attention in contrib_ops/cuda/bert/multihead_attention.cc). With lengths
    alone, only cuDNN, which is off, and GPUs older than Hopper have such a kernel.

    Attention with rotary positions or grouped heads is replaced too: texts would otherwise attend
    to padding (:mod:`server.runtime.cuda.padding`).

    Args:
        graph: the graph to search.
        is_right: see :mod:`server.runtime.cuda.attention_checks`; called only if needed.
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
        x, bias, biased = take_bias(graph, node.input[0])
        inputs = _Inputs(x, bias, lengths.input[0], node.output[0], graph.types[node.output[0]])
        if heads.size in _HEAD_SIZES and is_right(Attention.OURS, inputs.type_, heads.size):
            made = _ours(heads, inputs)
        elif inputs.suffix == "Fp16" and is_right(Attention.RANGES, inputs.type_, heads.size):
            made = _over_ranges(heads, inputs, ranges)
        elif graph.is_input(ATTENDED_LENGTHS):
            continue
        else:
            made = [_split(heads, inputs), _multi_head(heads, inputs, inputs.lengths)]
        yield Change(node, tuple(made), biased)


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


def _ours(heads: _Heads, inputs: _Inputs) -> list[onnx.NodeProto]:
    made, read = [], [inputs.x, inputs.lengths, inputs.bias]
    kv_number = heads.kv_number
    if heads.angles:
        made.append(_split(heads, inputs))
        query, key, value = inputs.parts
        read, kv_number = [query, inputs.lengths, "", key, value], heads.number
    attention = helper.make_node(
        f"EncoderAttention{inputs.suffix}",
        read if read[-1] else read[:-1],
        [inputs.y],
        name=inputs.y,
        domain=DOMAIN,
        num_heads=heads.number,
        num_kv_heads=kv_number,
        scale=heads.scale.get("scale", 0.0),
    )
    return [*made, attention]


def _over_ranges(
    heads: _Heads, inputs: _Inputs, ranges: dict[str, onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """Makes an attention over ranges of keys. ``ranges``: the ``KeyRanges`` nodes, by lengths."""
    made = [_split(heads, inputs)]
    if inputs.lengths not in ranges:
        name = f"{inputs.y}.ranges"
        ranges[inputs.lengths] = helper.make_node(
            "KeyRangesFp16", [inputs.x, inputs.lengths], [name], name=name, domain=DOMAIN
        )
        made.append(ranges[inputs.lengths])
    return [*made, _multi_head(heads, inputs, ranges[inputs.lengths].output[0])]


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


def pools(graph: GraphIndex) -> Iterator[Change]:
    """Replaces means over the tokens of texts."""
    for mean in pooled_means(graph):
        type_, size = graph.types[mean.x], graph.shape(mean.x)[-1:]
        if type_ not in SUFFIXES or not is_vector_size(size) or int(size[0]) > _MAX_POOLED_SIZE:
            continue
        y = mean.last.output[0]
        made = helper.make_node(
            f"Pool{SUFFIXES[type_]}",
            [mean.x, mean.lengths],
            [y],
            name=y,
            domain=DOMAIN,
            is_normalized=int(mean.min_norm is not None),
            min_norm=mean.min_norm or 0.0,
        )
        yield Change(mean.last, (made,), mean.dropped)
