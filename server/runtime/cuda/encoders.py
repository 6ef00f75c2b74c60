"""Patterns of encoders, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

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

# Of a mean: a block of threads of native/cuda/encoders.cc has a vector of each.
_MAX_POOLED_SIZE = 8192


def attentions(graph: GraphIndex, takes_ranges: Callable[[], bool]) -> Iterator[Change]:
    """Attention of an encoder: without a cache, ``GroupQueryAttention`` copies keys and values.

    With lengths alone, ``MultiHeadAttention`` may leave out queries beyond a text's last key.
    In fp16, and with the ranges of keys, it is a kernel that never stores the scores
    (contrib_ops/cuda/bert/multihead_attention.cc: memory-efficient attention). With the lengths of
    texts alone it is one only of cuDNN, which is off, or of GPUs older than Hopper.

    Rotary positions and groups of heads are taken; their texts would attend to padding else
    (:mod:`server.runtime.cuda.padding`).

    Args:
        graph: to search.
        takes_ranges: :func:`server.runtime.cuda.key_ranges.are_taken`; called if it matters.
    """
    ranges: dict[str, onnx.NodeProto] = {}  # by lengths
    needs_ranges = graph.is_input(ATTENDED_LENGTHS)
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention":
            continue
        heads = _heads_of(graph, node)
        lengths = graph.producer(node, 5, "Sub")
        ones = None if lengths is None else graph.inline_array(lengths.input[1])
        if heads is None or lengths is None or ones is None or np.any(ones != 1):
            continue
        x, bias, biased = take_bias(graph, node.input[0])
        y, mask = node.output[0], lengths.input[0]
        suffix = SUFFIXES[graph.types[y]]
        has_ranges = suffix == "Fp16" and takes_ranges()
        if needs_ranges and not has_ranges:
            continue
        parts = [f"{y}.{name}" for name in ("query", "key", "value")]
        split = helper.make_node(
            f"Split{suffix}",
            [x, bias, *heads.angles] if heads.angles else [x, bias] if bias else [x],
            parts,
            name=f"{y}.split",
            domain=DOMAIN,
            num_heads=heads.number,
            num_kv_heads=heads.kv_number,
            is_interleaved=heads.is_interleaved,
        )
        made = [split]
        if has_ranges:
            if mask not in ranges:
                ranges[mask] = helper.make_node(
                    "KeyRangesFp16", [x, mask], [f"{y}.ranges"], name=f"{y}.ranges", domain=DOMAIN
                )
                made.append(ranges[mask])
            mask = ranges[mask].output[0]
        attention = helper.make_node(
            "MultiHeadAttention",
            [*parts, "", mask],
            [y],
            name=y,
            domain=MICROSOFT,
            num_heads=heads.number,
            **heads.scale,
        )
        yield Change(node, (*made, attention), biased)


class _Heads(NamedTuple):
    """Of an attention; ``angles``: names of cosines and sines, or none."""

    number: int
    kv_number: int
    scale: dict[str, Any]  # the attribute, if there is one
    angles: tuple[str, ...]
    is_interleaved: int


def _heads_of(graph: GraphIndex, node: onnx.NodeProto) -> _Heads | None:
    """None if ``Split`` and ``MultiHeadAttention`` cannot compute a ``GroupQueryAttention``."""
    attributes = attributes_of(node)
    heads = _Heads(
        attributes.pop("num_heads"),
        attributes.pop("kv_num_heads"),
        {"scale": attributes.pop("scale")} if "scale" in attributes else {},
        tuple(node.input[7:9]) if attributes.pop("do_rotary", 0) else (),
        attributes.pop("rotary_interleaved", 0),
    )
    type_, size = graph.types.get(node.output[0]), graph.shape(node.output[0])[-1:]
    is_taken = (
        attributes.pop("causal", 1) == 0
        and not attributes
        and not any((*node.input[1:5], *node.input[9:]))
        and not any(graph.is_used(name) for name in node.output[1:] if name)
        and type_ in SUFFIXES
        and is_vector_size(size)
        and is_vector_size((int(size[0]) // heads.number,))
        and all(_are_angles(graph, name, heads, int(size[0])) for name in heads.angles)
    )
    return heads if is_taken else None


def _are_angles(graph: GraphIndex, name: str, heads: _Heads, size: int) -> bool:
    """Whether ``Split`` takes a constant: it rotates a vector with itself, or with another one."""
    angles = graph.initializers.get(name)
    if angles is None or len(angles.dims) != 2 or angles.data_type not in SUFFIXES:
        return False
    half = angles.dims[1]
    unit = VECTOR // 2 if heads.is_interleaved else VECTOR
    return half % unit == 0 and 2 * half <= size // heads.number


def pools(graph: GraphIndex) -> Iterator[Change]:
    """Means of the tokens of texts."""
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
