"""Builds and runs graphs of one ``GroupQueryAttention`` node with random inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.kernels.library import LIBRARY, Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array

NEEDS_KERNEL = pytest.mark.skipif(
    Kernels.ATTENTION not in supported_kernels(),
    reason="this CPU cannot run the kernel",
)

# Inputs of the standard operator and their ranks.
RANKS = {
    "query": 3,
    "key": 3,
    "value": 3,
    "past_key": 4,
    "past_value": 4,
    "last": 1,
    "total": 0,
    "cos": 2,
    "sin": 2,
    "positions": 2,
    "bias": 4,
    "sink": 1,
}
TYPES = {"last": TensorProto.INT32, "total": TensorProto.INT32, "positions": TensorProto.INT64}
OUTPUTS = ("y", "present_key", "present_value")


def graph(
    names: Mapping[str, Any],
    attributes: Mapping[str, Any],
    *,
    dtype: int = TensorProto.FLOAT,
    outputs: tuple[str, ...] = OUTPUTS,
    has_source: bool = False,
) -> onnx.ModelProto:
    """Makes a graph of one ``GroupQueryAttention`` node with these inputs and outputs.

    ``has_source``: the cache holds an encoder source, which several rows may share.
    """
    node_outputs = [*OUTPUTS, *outputs[len(OUTPUTS) :]]
    inputs = [name if name in names else "" for name in RANKS]
    node = helper.make_node(
        "GroupQueryAttention", inputs, node_outputs, domain="com.microsoft", **attributes
    )
    values = [
        helper.make_tensor_value_info(
            name, TYPES.get(name, dtype), [f"{name}.{axis}" for axis in range(rank)]
        )
        for name, rank in RANKS.items()
        if name in names
    ]
    graph_outputs = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph([node], "g", values, graph_outputs)
    if has_source:
        _take_no_keys(made)
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def _take_no_keys(made: onnx.GraphProto) -> None:
    """Takes no key and no value of those given, as the export writes cross-attention."""
    numbers = {"zero": np.zeros(1, np.int64), "one": np.ones(1, np.int64)}
    made.initializer.extend(numpy_helper.from_array(x, name) for name, x in numbers.items())
    for index in (1, 2):
        name = made.node[-1].input[index]
        slice_ = helper.make_node("Slice", [name, "zero", "zero", "one"], [f"no_{name}"])
        made.node[-1].input[index] = slice_.output[0]
        made.node.insert(0, slice_)


def add_int8_product(model: onnx.ModelProto) -> None:
    """Adds a product in int8 that nothing reads: beside one, attention may round to bfloat16."""
    factors = {"a": np.ones((2, 3), np.uint8), "b": np.ones((3, 2), np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in factors.items())
    model.graph.node.append(helper.make_node("MatMulInteger", list(factors), ["product"]))
    product = helper.make_tensor_value_info("product", TensorProto.INT32, [2, 2])
    model.graph.output.append(product)


def session(model: str | bytes, num_threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(LIBRARY))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def native_session(file: Path, num_threads: int = 1) -> ort.InferenceSession:
    rewritten = rewrite(file, Kernels.ATTENTION)
    assert rewritten is not None
    return session(rewritten.model, num_threads)


def run(
    ort_session: ort.InferenceSession, inputs: Mapping[str, Array], *, in_place: bool = False
) -> list[Array]:
    """Returns all outputs. ``in_place``: the present cache shares the past cache's buffers."""
    if not in_place:
        return [np.asarray(output) for output in ort_session.run(None, dict(inputs))]
    binding = ort_session.io_binding()
    buffers = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    for name, array in buffers.items():
        location = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_input(name, *location)
        if name.startswith("past_"):
            binding.bind_output(name.replace("past_", "present_"), *location)
    binding.bind_output("y", "cpu")
    ort_session.run_with_iobinding(binding)
    y = binding.get_outputs()[-1].numpy()
    return [y, buffers["past_key"], buffers["past_value"]]


@dataclass(frozen=True)
class Case:
    """One call of the operator. ``lengths``: total length of each row, new keys included."""

    kind: str
    num_tokens: int
    lengths: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    size: int = 32
    capacity: int = 0
    packed: bool = True
    in_place: bool = False
    angles: int = 0
    bias: tuple[bool, bool] | None = None
    has_sinks: bool = False
    attributes: dict[str, int | float] = field(default_factory=dict)
    seed: int = 0

    @property
    def is_fresh(self) -> bool:
        return self.kind in ("prompt", "encoder")

    def inputs(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        (heads, kv_heads), size = self.heads, self.size
        num_rows, num_tokens = len(self.lengths), self.num_tokens
        total = num_tokens if self.is_fresh else max(self.lengths)

        def random_normal(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        arrays = {
            "last": np.array(self.lengths, np.int32) - 1,
            "total": np.array(total, np.int32),
        }
        query_size = heads * size if not self.packed else (heads + 2 * kv_heads) * size
        arrays["query"] = random_normal(num_rows, num_tokens, query_size)
        if not self.packed:
            num_new = 0 if self.kind == "cross" else num_tokens
            arrays["key"] = random_normal(num_rows, num_new, kv_heads * size)
            arrays["value"] = random_normal(num_rows, num_new, kv_heads * size)
        if self.capacity:
            arrays["past_key"] = random_normal(num_rows, kv_heads, self.capacity, size)
            arrays["past_value"] = random_normal(num_rows, kv_heads, self.capacity, size)
        if self.angles:
            angles = rng.uniform(-4, 4, (total + 3, self.angles))
            arrays["cos"] = np.cos(angles).astype(np.float32)
            arrays["sin"] = np.sin(angles).astype(np.float32)
        if self.bias is not None:
            rows, by_head = self.bias
            shape = (num_rows if rows else 1, heads if by_head else 1, num_tokens, total)
            arrays["bias"] = random_normal(*shape)
        if self.has_sinks:
            arrays["sink"] = random_normal(heads)
        return arrays

    def all_attributes(self) -> dict[str, int | float]:
        attributes_of_kind: dict[str, int | float] = {
            "num_heads": self.heads[0],
            "kv_num_heads": self.heads[1],
            "causal": int(self.kind not in ("encoder", "cross")),
            "do_rotary": int(bool(self.angles)),
        }
        return attributes_of_kind | self.attributes
