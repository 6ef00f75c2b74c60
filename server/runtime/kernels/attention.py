"""Replaces ``com.microsoft.GroupQueryAttention`` in fp32: native/attention_operator.h.

Results differ by rounding only. In a graph with int8 products, attention may round its factors to
bfloat16. Nodes with unsupported attributes or inputs are not replaced.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from server.runtime.contract import SOURCE_ROWS
from server.runtime.kernels import blocks, int8
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import ATTENDED_LENGTHS, LENGTHS
from server.runtime.rewriting.nodes import DOMAIN, attributes_of
from server.runtime.rewriting.rewrites import Rewrite

STANDARD_OPERATOR = "GroupQueryAttention"
OPERATOR = "Attention"

# The attributes that both operators have, with the standard operator's defaults.
ATTRIBUTES: dict[str, int | float] = {
    "num_heads": 0,
    "kv_num_heads": 0,
    "scale": 0.0,
    "softcap": 0.0,
    "causal": 1,
    "local_window_size": -1,
    "rotary_interleaved": 0,
    "smooth_softmax": 0,
}
# Attributes of the standard operator that must have these values if they are given.
_REQUIRED: dict[str, Any] = {
    "qk_output": 0,
    "sliding_window_cache": 0,
    "k_quant_type": b"NONE",
    "v_quant_type": b"NONE",
}
# Products with weights that round their inputs to 8 bits.
_INT8_PRODUCTS = frozenset({int8.STANDARD_OPERATOR, blocks.STANDARD_OPERATOR})
# Inputs of the standard operator.
_QUERY, _KEY, _VALUE, _PAST, _COS, _SIN, _POSITIONS, _SINKS = 0, 1, 2, 3, 7, 8, 9, 11
_NUM_OUTPUTS = 3
_CHOSEN_TOKENS, _LENGTHS = 12, 13  # inputs of the native operator: native/attention_inputs.h
_SOURCE_ROWS_INPUT = onnx.helper.make_tensor_value_info(
    SOURCE_ROWS, onnx.TensorProto.INT32, ["batch"]
)


def replace_attention(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each ``GroupQueryAttention`` that the native operator supports."""
    allows_bfloat16 = any(node.op_type in _INT8_PRODUCTS for node in graph.nodes)
    for node in graph.nodes:
        if node.op_type != STANDARD_OPERATOR:
            continue
        settings = _settings(node)
        if settings is None or not _has_supported_inputs(graph, node):
            continue
        if (outputs := _used_outputs(graph, node)) is None:
            continue
        inputs = _native_inputs(graph, node)
        new_node = onnx.helper.make_node(
            OPERATOR,
            inputs,
            outputs,
            name=node.name,
            domain=DOMAIN,
            allows_bfloat16=int(allows_bfloat16),
            **settings,
        )
        new_inputs = (_SOURCE_ROWS_INPUT,) if SOURCE_ROWS in inputs else ()
        yield Rewrite(node, (new_node,), inputs=new_inputs)


def choose_tokens(node: onnx.NodeProto, positions: str) -> None:
    """Lets a native node compute only the outputs of the tokens at ``positions``."""
    node.input.extend([""] * (_CHOSEN_TOKENS - len(node.input)))
    node.input.append(positions)


def _settings(node: onnx.NodeProto) -> dict[str, Any] | None:
    """Returns the native node's attributes; None if an attribute of ``node`` is unsupported."""
    attributes = attributes_of(node)
    attributes.pop("do_rotary", 0)
    settings = {name: attributes.pop(name, default) for name, default in ATTRIBUTES.items()}
    is_supported = all(
        name in _REQUIRED and _REQUIRED[name] == value for name, value in attributes.items()
    )
    return settings if is_supported else None


def _padded_inputs(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *[""] * (_SINKS + 1 - len(node.input))]


def _has_supported_inputs(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    inputs = _padded_inputs(node)
    if inputs[_POSITIONS] or any(inputs[_SINKS + 1 :]) or any(node.output[_NUM_OUTPUTS:]):
        return False
    return all(
        graph.types.get(name) == onnx.TensorProto.FLOAT
        for name in (inputs[_QUERY], inputs[_PAST] or inputs[_QUERY])
    )


def _native_inputs(graph: GraphIndex, node: onnx.NodeProto) -> list[str]:
    """Returns the inputs of the native node, in the order of native/attention_operator.h."""
    inputs = _padded_inputs(node)
    if not attributes_of(node).get("do_rotary", 0):
        inputs[_COS] = inputs[_SIN] = ""
    has_no_keys = all(_is_empty(graph, name) for name in (inputs[_KEY], inputs[_VALUE]))
    reads_source = has_no_keys and graph.is_input(inputs[_PAST])
    if reads_source:
        inputs[_KEY] = inputs[_VALUE] = ""
    del inputs[_POSITIONS]
    if not inputs[_PAST] and graph.is_input(ATTENDED_LENGTHS):
        # Tokens after a row's last key are padding only if they are also beyond its length.
        return [*inputs, *[""] * (_LENGTHS - len(inputs)), LENGTHS[0]]
    return [*inputs, SOURCE_ROWS] if reads_source else inputs


def _is_empty(graph: GraphIndex, name: str) -> bool:
    """Whether a value has no elements: cross-attention adds no keys to the source's keys."""
    node = graph.producers.get(name)
    if node is None or node.op_type != "Slice":
        return False
    start, end = (graph.inline_array(edge) for edge in node.input[1:3])
    return start is not None and end is not None and np.array_equal(start, end)


def _used_outputs(graph: GraphIndex, node: onnx.NodeProto) -> list[str] | None:
    """Returns the outputs, with present keys and values if there is a cache or a reader of them.

    None if one of these is missing.
    """
    outputs = list(node.output[:_NUM_OUTPUTS])
    past = _padded_inputs(node)[_PAST]
    if not past and not any(graph.is_used(name) for name in outputs[1:]):
        return outputs[:1]
    return outputs if len(outputs) == _NUM_OUTPUTS and all(outputs) else None
