"""A builder for the nodes of a sampling graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18  # every operator used here has a CUDA kernel at this opset


@dataclass
class Nodes:
    """A graph under construction. Each method adds nodes and returns the name of their output."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def top_k(self, values: str, count: int, *, largest: bool = True) -> tuple[str, str]:
        """Finds each row's ``count`` largest or smallest values, in order, and their indices."""
        name = f"TopK_{len(self.nodes)}"
        inputs = [values, self.constant(np.array([count]))]
        outputs = [f"{name}_values", f"{name}_indices"]
        node = helper.make_node("TopK", inputs, outputs, name=name, axis=-1, largest=int(largest))
        self.nodes.append(node)
        return outputs[0], outputs[1]

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def cast(self, value: str, element_type: int) -> str:
        return self.add("Cast", value, to=element_type)

    def reduce(self, operator: str, value: str, axis: int = -1, *, keep: bool = True) -> str:
        """Reduces one axis, with an operator that takes its axes as an input."""
        return self.add(operator, value, self.constant(np.array([axis])), keepdims=int(keep))

    def reshape(self, value: str, *sizes: int) -> str:
        return self.add("Reshape", value, self.constant(np.array(sizes)))

    def slice(self, value: str, start: int, stop: int, axis: int = 1) -> str:
        bounds = (self.constant(np.array([number])) for number in (start, stop, axis))
        return self.add("Slice", value, *bounds)

    def gather(self, values: str, index: str) -> str:
        """Takes from each row of ``values [n, m]`` the values at ``index [n, k]``: ``[n, k]``."""
        return self.add("GatherElements", values, index, axis=1)

    def cumulative_sum(self, values: str) -> str:
        """Sums each row's first 1, 2, … values."""
        return self.add("CumSum", values, self.constant(np.int64(1)))

    def count_where(self, values: str, operator: str, bounds: str) -> str:
        """Counts, in each row of ``values [n, m]``, ``value operator bound``: int64 ``[n, 2]``.

        ``bounds [n, 2]``: two bounds for each row.
        """
        rows = self.add("Unsqueeze", values, self.constant(np.array([1])))
        columns = self.add("Unsqueeze", bounds, self.constant(np.array([2])))
        hits = self.cast(self.add(operator, rows, columns), TensorProto.INT64)
        return self.reduce("ReduceSum", hits, 2, keep=False)

    def interval(self, value: str, half_width: float) -> str:
        """Computes ``value [n, 1]`` minus and plus ``half_width``: ``[n, 2]``."""
        return self.add("Add", value, self.constant(np.array([[-half_width, half_width]])))

    def agreement(self, ends: str) -> tuple[str, str]:
        """Takes the first of ``ends [n, 2]``, and whether the second equals it: ``[n, 1]`` each."""
        first = self.slice(ends, 0, 1)
        return first, self.add("Equal", first, self.slice(ends, 1, 2))

    def all_of(self, conditions: Sequence[str]) -> str:
        result, *rest = conditions
        for condition in rest:
            result = self.add("And", result, condition)
        return result

    def model(
        self, inputs: list[onnx.ValueInfoProto], name: str, element_type: int, sizes: Sequence[Any]
    ) -> onnx.ModelProto:
        """Returns the finished graph, with one output."""
        output = helper.make_tensor_value_info(name, element_type, sizes)
        graph = helper.make_graph(self.nodes, "sample", inputs, [output], self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )
