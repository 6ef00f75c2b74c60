"""An index of an ONNX graph: producers, consumers, shapes and constants. For pattern matching."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from server.runtime.memory import Array
from server.runtime.rewriting.graph_inputs import LENGTHS, TOKENS
from server.runtime.rewriting.nodes import attributes_of, values_read


class GraphIndex:
    """Looks up the nodes and values of ``graph``; its external weights are in ``directory``."""

    def __init__(self, graph: onnx.GraphProto, directory: Path) -> None:
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.producers = {name: node for node in graph.node for name in node.output if name}
        typed = [*graph.input, *graph.value_info, *graph.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in typed}
        self._directory = directory
        self._inputs = {value.name: value for value in graph.input}
        self._shapes = {value.name: shape_of(value) for value in (*graph.value_info, *graph.input)}
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in values_read(node):
                self._consumers.setdefault(name, []).append(node)

    def producer(
        self, consumer: onnx.NodeProto | None, index: int, operator: str
    ) -> onnx.NodeProto | None:
        """The node that produces input ``index`` of ``consumer``, if it is an ``operator``."""
        node = None if consumer is None else self.producers.get(consumer.input[index])
        return node if node is not None and node.op_type == operator else None

    def only_consumer(self, node: onnx.NodeProto | None, *operators: str) -> onnx.NodeProto | None:
        """The only consumer of the first output of ``node``, if it is one of these operators.

        Without ``operators``, it may be any.
        """
        if node is None or node.output[0] in self.outputs:
            return None
        consumers = self._consumers.get(node.output[0], [])
        matches = len(consumers) == 1 and (not operators or consumers[0].op_type in operators)
        return consumers[0] if matches else None

    def consumers(self, name: str) -> Sequence[onnx.NodeProto]:
        """The nodes that read a value, once for each input that does."""
        return self._consumers.get(name, [])

    def skip(self, name: str, *operators: str) -> str:
        """The value that nodes of these operators make ``name`` of, by their first inputs."""
        while (node := self.producers.get(name)) is not None and node.op_type in operators:
            name = node.input[0]
        return name

    def shape(self, name: str) -> tuple[str | int, ...]:
        """The sizes of a value, symbolic ones by name; empty if unknown."""
        return self._shapes.get(name, ())

    def have_same_shape(self, one: str, other: str) -> bool:
        """Whether both values have the same known shape for all sizes of the inputs."""
        shape = self.shape(one)
        return bool(shape) and all(shape) and shape == self.shape(other)

    def lengths_of(self, name: str) -> str:
        """The input with the lengths of the rows of ``[batch, length, size]``, or ""."""
        tokens, shape = self.shape(TOKENS), self.shape(name)
        if len(tokens) != 2 or len(shape) != 3 or shape[:2] != tokens:
            return ""
        for lengths in LENGTHS:
            value = self._inputs.get(lengths)
            if value is not None and value.type.tensor_type.elem_type == onnx.TensorProto.INT32:
                return lengths
        return ""

    def is_input(self, name: str) -> bool:
        """Whether a value is an input of the graph."""
        return name in self._inputs

    def is_used(self, name: str) -> bool:
        """Whether a node reads the value, or it is an output of the graph."""
        return name in self._consumers or name in self.outputs

    def inline_array(self, name: str) -> Array | None:
        """A constant stored in the graph itself; None if it is not, or there is none."""
        tensor = self.initializers.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def scalar(self, name: str) -> float | None:
        """The number of a constant without axes that is stored in the graph itself, or None."""
        array = self.inline_array(name)
        return float(array.item()) if array is not None and array.ndim == 0 else None

    def axes(self, node: onnx.NodeProto) -> list[int]:
        """The constant second input of a node, which names axes; empty if there is none."""
        axes = self.inline_array(node.input[1]) if len(node.input) > 1 else None
        return [] if axes is None else axes.tolist()

    def array(self, name: str) -> Array:
        """A constant, read from its file if it is external.

        Raises:
            KeyError: the graph has no such constant.
            OSError: the file cannot be read.
        """
        tensor = onnx.TensorProto()
        tensor.CopyFrom(self.initializers[name])
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            load_external_data_for_tensor(tensor, str(self._directory))
        return numpy_helper.to_array(tensor)

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, which may be stored as another type."""
        cast = self.producers.get(name)
        is_cast = cast is not None and cast.op_type == "Cast"
        return name in self.initializers or (
            is_cast and cast is not None and cast.input[0] in self.initializers
        )

    def constant(self, name: str) -> Array:
        """Such a constant."""
        if name in self.initializers:
            return self.array(name)
        cast = self.producers[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(attributes_of(cast)["to"])
        return self.array(cast.input[0]).astype(dtype)


def shape_of(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    """The sizes of a value, symbolic ones by name; an unknown size is 0."""
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
