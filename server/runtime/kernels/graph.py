"""A graph as the patterns want to see it: who makes and who reads each value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from server.runtime.contract import Array

# Inputs of the model's graphs (export/signatures.py): tokens, and how many of a row's there are.
TOKENS, LENGTHS = "token_ids", ("lengths", "num_new_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """``node`` stands where ``last`` stood, and has its outputs.

    What only ``last`` read is dropped. ``packed`` has initializers that the graph did not have,
    ``inputs`` has what the graph did not take.
    """

    last: onnx.NodeProto
    node: onnx.NodeProto
    packed: dict[str, Array] = field(default_factory=dict)
    inputs: tuple[onnx.ValueInfoProto, ...] = ()


class Graph:
    """``graph``, whose external weights lie in ``directory``."""

    def __init__(self, graph: onnx.GraphProto, directory: Path) -> None:
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.maker = {name: node for node in graph.node for name in node.output if name}
        typed = [*graph.input, *graph.value_info, *graph.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in typed}
        self._directory = directory
        self._inputs = {value.name: value for value in graph.input}
        self._shapes = {value.name: _shape(value) for value in (*graph.value_info, *graph.input)}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def made_for(
        self, reader: onnx.NodeProto | None, index: int, operator: str
    ) -> onnx.NodeProto | None:
        """The node that makes ``reader``'s input ``index``, if it is such an operator."""
        node = None if reader is None else self.maker.get(reader.input[index])
        return node if node is not None and node.op_type == operator else None

    def read_by(self, node: onnx.NodeProto | None, *operators: str) -> onnx.NodeProto | None:
        """The one reader of ``node``'s only output, if it is such an operator."""
        if node is None or node.output[0] in self.outputs:
            return None
        readers = self._readers.get(node.output[0], [])
        is_one = len(readers) == 1 and readers[0].op_type in operators
        return readers[0] if is_one else None

    def readers(self, name: str) -> Sequence[onnx.NodeProto]:
        """The nodes that read a value, each as often as it does."""
        return self._readers.get(name, [])

    def shape(self, name: str) -> tuple[str | int, ...]:
        """Its sizes and names of sizes; empty if nothing is known."""
        return self._shapes.get(name, ())

    def have_same_shape(self, one: str, other: str) -> bool:
        """Whether both are known to have it (and have one), whatever the inputs' sizes."""
        shape = self.shape(one)
        return bool(shape) and all(shape) and shape == self.shape(other)

    def lengths_of(self, name: str) -> str:
        """The input that says how many rows of ``[batch, length, size]`` are no padding, if any."""
        tokens, shape = self.shape(TOKENS), self.shape(name)
        if len(tokens) != 2 or len(shape) != 3 or shape[:2] != tokens:
            return ""
        for lengths in LENGTHS:
            value = self._inputs.get(lengths)
            if value is not None and value.type.tensor_type.elem_type == onnx.TensorProto.INT32:
                return lengths
        return ""

    def is_read(self, name: str) -> bool:
        """Whether a node reads it, or it is an output of the graph."""
        return name in self._readers or name in self.outputs

    def small(self, name: str) -> Array | None:
        """An initializer that the graph itself holds."""
        tensor = self.initializers.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def array(self, name: str) -> Array:
        """An initializer.

        Raises:
            KeyError: there is none of that name.
            OSError: its file cannot be read.
        """
        tensor = onnx.TensorProto()
        tensor.CopyFrom(self.initializers[name])
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            load_external_data_for_tensor(tensor, str(self._directory))
        return numpy_helper.to_array(tensor)


def _shape(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    """Sizes and names of sizes; 0 or empty where nothing is known."""
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
