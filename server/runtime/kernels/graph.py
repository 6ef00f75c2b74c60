"""An index of an ONNX graph: producers, consumers, shapes and constants. For pattern matching."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from server.runtime.memory import Array

# Inputs of exported graphs (export/signatures.py): the tokens, the length of each row, and which
# tokens get logits.
TOKENS, LENGTHS = "token_ids", ("lengths", "num_new_tokens")
ATTENDED_LENGTHS = "attended_lengths"  # of tokens that others attend to
LOGIT_POSITIONS = "logit_positions"


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Replaces ``last``, and the nodes that only lead to it, by ``node``, which has its outputs.

    ``node`` may have outputs of other nodes too, which it replaces as well.

    ``initializers`` are new constants of the graph, ``inputs`` new inputs.
    """

    last: onnx.NodeProto
    node: onnx.NodeProto
    initializers: dict[str, Array] = field(default_factory=dict)
    inputs: tuple[onnx.ValueInfoProto, ...] = ()


class GraphIndex:
    """Looks up the nodes and values of ``graph``; its external weights are in ``directory``.

    ``takes_candidates``: see :func:`server.runtime.kernels.rewrite.rewrite`.
    """

    def __init__(
        self, graph: onnx.GraphProto, directory: Path, *, takes_candidates: bool = False
    ) -> None:
        self.takes_candidates = takes_candidates
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = {value.name for value in graph.output}
        self.producers = {name: node for node in graph.node for name in node.output if name}
        typed = [*graph.input, *graph.value_info, *graph.output]
        self.types = {value.name: value.type.tensor_type.elem_type for value in typed}
        self._directory = directory
        self._inputs = {value.name: value for value in graph.input}
        self._shapes = {value.name: _shape(value) for value in (*graph.value_info, *graph.input)}
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._consumers.setdefault(name, []).append(node)

    def producer(
        self, consumer: onnx.NodeProto | None, index: int, operator: str
    ) -> onnx.NodeProto | None:
        """The node that produces input ``index`` of ``consumer``, if it is an ``operator``."""
        node = None if consumer is None else self.producers.get(consumer.input[index])
        return node if node is not None and node.op_type == operator else None

    def only_consumer(self, node: onnx.NodeProto | None, *operators: str) -> onnx.NodeProto | None:
        """The only consumer of the only output of ``node``, if it is one of these operators."""
        if node is None or node.output[0] in self.outputs:
            return None
        consumers = self._consumers.get(node.output[0], [])
        matches = len(consumers) == 1 and consumers[0].op_type in operators
        return consumers[0] if matches else None

    def consumers(self, name: str) -> Sequence[onnx.NodeProto]:
        """The nodes that read a value, once for each input that does."""
        return self._consumers.get(name, [])

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
        dtype = onnx.helper.tensor_dtype_to_np_dtype(cast.attribute[0].i)
        return self.array(cast.input[0]).astype(dtype)


def other_operand(node: onnx.NodeProto, operand: str) -> str:
    """The operand of a node of two that is not ``operand``."""
    return str(node.input[1] if node.input[0] == operand else node.input[0])


def _shape(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    """Sizes, symbolic ones by name; an unknown size is 0."""
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
