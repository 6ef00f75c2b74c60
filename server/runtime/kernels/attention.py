"""``com.microsoft.GroupQueryAttention`` in fp32 becomes an operator of our own.

It computes the same but for rounding. A node that asks for what ours does not do stays.
"""

from collections.abc import Iterator
from typing import Any

import onnx

from server.runtime.contract import SOURCE_ROWS
from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.library import DOMAIN

STANDARD = "GroupQueryAttention"
OPERATOR = "Attention"

# native/attention_operator.h, with the standard operator's defaults.
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
# What has to be so, if it is given.
_FIXED: dict[str, Any] = {
    "qk_output": 0,
    "sliding_window_cache": 0,
    "k_quant_type": b"NONE",
    "v_quant_type": b"NONE",
}
_QUERY, _PAST, _COS, _SIN, _POSITIONS, _SINKS = 0, 3, 7, 8, 9, 11
_NUM_OUTPUTS = 3
# The length of keys of a source (model.bundle.StateSpec), which are all cached.
_SOURCE_LENGTH = "source_length"
_SOURCES = onnx.helper.make_tensor_value_info(SOURCE_ROWS, onnx.TensorProto.INT32, ["batch"])


def attentions(graph: Graph) -> Iterator[Replacement]:
    """Those of ``graph`` that ours can stand for."""
    for node in graph.nodes:
        if node.op_type == STANDARD and (made := _made(graph, node)) is not None:
            yield Replacement(node, made, inputs=(_SOURCES,) if SOURCE_ROWS in made.input else ())


def _made(graph: Graph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    turns = given.pop("do_rotary", 0)
    settings = {name: given.pop(name, default) for name, default in ATTRIBUTES.items()}
    inputs = [*node.input, *[""] * (_SINKS + 1 - len(node.input))]
    has_more = any(inputs[_SINKS + 1 :]) or any(node.output[_NUM_OUTPUTS:])
    is_known = all(_FIXED.get(name, value) == value for name, value in given.items())
    if has_more or inputs[_POSITIONS] or not given.keys() <= _FIXED.keys() or not is_known:
        return None
    if graph.types.get(inputs[_QUERY]) != onnx.TensorProto.FLOAT:
        return None
    if inputs[_PAST] and graph.types.get(inputs[_PAST]) != onnx.TensorProto.FLOAT:
        return None
    if not turns:
        inputs[_COS] = inputs[_SIN] = ""
    has_source = _SOURCE_LENGTH in graph.shape(inputs[_PAST])
    del inputs[_POSITIONS]
    inputs += [SOURCE_ROWS] if has_source else []
    outputs = list(node.output[:_NUM_OUTPUTS])
    if not inputs[_PAST] and not any(graph.is_read(name) for name in outputs[1:]):
        outputs = outputs[:1]
    elif len(outputs) < _NUM_OUTPUTS or not all(outputs):
        return None
    return onnx.helper.make_node(
        OPERATOR, inputs, outputs, name=node.name, domain=DOMAIN, **settings
    )
