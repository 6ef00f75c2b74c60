"""Patterns of encoders, for :mod:`server.runtime.cuda.rewrite`."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper

from server.runtime.cuda.changes import MICROSOFT, SUFFIXES, Change, is_vector_size, take_bias
from server.runtime.cuda.pooling import pooled_means
from server.runtime.kernels.graph import ATTENDED_LENGTHS, GraphIndex
from server.runtime.kernels.library import DOMAIN

# Of a mean: a block of threads of native/cuda/encoders.cc has a vector of each.
_MAX_POOLED_SIZE = 8192


def attentions(graph: GraphIndex, takes_ranges: Callable[[], bool]) -> Iterator[Change]:
    """Attention of an encoder: without a cache, ``GroupQueryAttention`` copies keys and values.

    ``MultiHeadAttention`` may leave out tokens beyond the last key, also those that attend to it.
    In fp16, and with the ranges of keys, it is a kernel that never stores the scores
    (contrib_ops/cuda/bert/multihead_attention.cc: memory-efficient attention). With the lengths of
    texts alone it is one only of cuDNN, which is off, or of GPUs older than Hopper.

    Args:
        graph: to search.
        takes_ranges: :func:`server.runtime.cuda.key_ranges.are_taken`; called if it matters.
    """
    ranges: dict[str, onnx.NodeProto] = {}  # by lengths
    if graph.is_input(ATTENDED_LENGTHS):
        return
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention" or any(node.input[1:5]) or any(node.input[7:]):
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        heads = attributes.pop("num_heads")
        is_plain = attributes.pop("kv_num_heads") == heads and attributes.pop("causal", 1) == 0
        scale = {"scale": attributes.pop("scale")} if "scale" in attributes else {}
        if not is_plain or attributes.pop("do_rotary", 0) or attributes:
            continue
        if any(graph.is_used(name) for name in node.output[1:] if name):
            continue
        lengths = graph.producer(node, 5, "Sub")
        ones = None if lengths is None else graph.inline_array(lengths.input[1])
        size = graph.shape(node.output[0])[-1:]
        type_ = graph.types.get(node.output[0])
        if lengths is None or ones is None or np.any(ones != 1) or type_ not in SUFFIXES:
            continue
        if not is_vector_size(size):
            continue
        x, bias, biased = take_bias(graph, node.input[0])
        y = node.output[0]
        parts = [f"{y}.{name}" for name in ("query", "key", "value")]
        split = helper.make_node(
            f"Split{SUFFIXES[type_]}",
            [x, bias] if bias else [x],
            parts,
            name=f"{y}.split",
            domain=DOMAIN,
            first_size=size[0],
            second_size=size[0],
        )
        made, mask = [split], lengths.input[0]
        is_wide = is_vector_size((int(size[0]) // heads,))
        if SUFFIXES[type_] == "Fp16" and is_wide and takes_ranges():
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
            num_heads=heads,
            **scale,
        )
        yield Change(node, (*made, attention), biased)


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
