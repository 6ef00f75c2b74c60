"""Nodes of ONNX graphs: their attributes and operands, and new ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from server.runtime.memory import Array

DOMAIN = "triune"
"""The ONNX domain of the operators of the native libraries."""
MICROSOFT = "com.microsoft"
"""The ONNX domain of ONNX Runtime's own operators."""


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes that a node has, by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def values_read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads: its inputs, and all that its subgraphs name.

    Subgraphs read values of the graph around them; their own have other names.
    """
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from (value.name for value in attribute.g.output)
            for inner in attribute.g.node:
                yield from values_read(inner)


def other_operand(node: onnx.NodeProto, operand: str) -> str:
    """The operand of a node of two that is not ``operand``."""
    return str(node.input[1] if node.input[0] == operand else node.input[0])


def native_node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> onnx.NodeProto:
    """A node of an operator of the native libraries, named as its first output."""
    return helper.make_node(operator, inputs, outputs, name=outputs[0], domain=DOMAIN, **attributes)


def constant_node(name: str, array: Array) -> onnx.NodeProto:
    """A node whose output ``name`` is an array."""
    return helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(array))


def copy_of(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy, which may be changed."""
    return onnx.NodeProto.FromString(node.SerializeToString())
