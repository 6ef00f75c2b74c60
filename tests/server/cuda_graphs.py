"""Small graphs to rewrite for CUDA, with random weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from server.runtime.cuda.rewrite import rewrite_model
from server.runtime.memory import Array

MICROSOFT = "com.microsoft"
SIZE = 16
FLOAT, FLOAT16, INT32 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32
Shape = Sequence[str | int]


def node(
    operator: str, inputs: Sequence[str], *outputs: str, domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=domain, **attributes)


def values(type_: int, **shapes: Shape) -> list[onnx.ValueInfoProto]:
    """Descriptions of values of one type, by name."""
    return [helper.make_tensor_value_info(name, type_, shape) for name, shape in shapes.items()]


def make_graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array],
    inner: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model with the shapes of all values. ``inner``: values whose shapes cannot be inferred."""
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers, value_info=inner)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def save(model: onnx.ModelProto, folder: Path) -> Path:
    """Saves a model as in bundles: weights have a file of their own, scalars do not."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    path = folder / "graph.onnx"
    for tensor in copy.graph.initializer:
        if tensor.dims:
            set_external_data(tensor, f"{path.name}.data")
    onnx.save(copy, path)
    return path


def load(data: bytes, folder: Path) -> onnx.ModelProto:
    """The model of :func:`server.runtime.cuda.rewrite.rewrite_model`, with its weights."""
    model = onnx.ModelProto.FromString(data)
    onnx.load_external_data_for_model(model, str(folder))
    return model


def rewrite(path: Path, *arguments: Any, **options: Any) -> bytes | None:
    """The graph in ``path``, rewritten by ``rewrite_model``; None if nothing changes."""
    model = onnx.load(str(path), load_external_data=False)
    changed = rewrite_model(model, path.parent, *arguments, **options)
    return model.SerializeToString() if changed else None


def type_of(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def random(dtype: Any, *shape: int, seed: int = 0) -> Array:
    array: Array = np.random.default_rng(seed).normal(size=shape).astype(dtype)
    return array


def attributes(made: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in made.attribute}


def of_rows(type_: int, size: int, *nodes: onnx.NodeProto, row: str = "row") -> onnx.ModelProto:
    """A model of ``x`` and ``residual`` with a constant ``row``."""
    rows = ("batch", "length", size)
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    inputs, outputs = values(type_, x=rows, residual=rows), values(type_, y=rows)
    return make_graph(nodes, inputs, outputs, {row: random(dtype, size)})


def gated(
    type_: int, weights: Mapping[str, Array], axis: int = -1, size: int = SIZE
) -> onnx.ModelProto:
    """A model of ``y = -silu(a) * b``, where ``a`` and ``b`` are the halves of ``x + bias``."""
    sizes: list[list[str | int]] = [["batch", 6, size], ["batch", 6, size]]
    sizes[0][axis] = 2 * sizes[1][axis]
    nodes = [
        *(node("Add", ["x", bias], "biased") for bias in weights),
        node("Split", ["biased" if weights else "x"], "a", "b", axis=axis, num_outputs=2),
        node("Sigmoid", ["a"], "sigmoid"),
        node("Mul", ["a", "sigmoid"], "silu"),
        node("Mul", ["silu", "b"], "product"),
        node("Neg", ["product"], "y"),
    ]
    return make_graph(nodes, values(type_, x=sizes[0]), values(type_, y=sizes[1]), weights)


def attention(
    weights: Mapping[str, Array],
    size: int = SIZE,
    type_: int = FLOAT16,
    angles: Mapping[str, Array] = MappingProxyType({}),
    position_bias: str = "",
    **others: Any,
) -> onnx.ModelProto:
    """A model of ``y = -attention(x + bias)`` in an encoder, without a cache.

    Args:
        size: of the queries.
        angles: cosines and sines of rotary positions.
        position_bias: of scores, a row of ``weights``.
    """
    options = {"num_heads": 2, "kv_num_heads": 2, "causal": 0, **others}
    biases = [name for name in weights if name != position_bias]
    inputs = ["biased" if biases else "packed", *[""] * 4, "last_positions", "max_length"]
    if angles or position_bias:
        inputs += [*(angles or ("", "")), "", position_bias]
    nodes = [
        *(node("Add", ["packed", bias], "biased") for bias in biases),
        node("Sub", ["lengths", "one"], "last_positions"),
        node("GroupQueryAttention", inputs, "attended", domain=MICROSOFT, **options),
        node("Neg", ["attended"], "y"),
    ]
    rows = ("batch", "length", size)
    packed_size = size + 2 * size // options["num_heads"] * options["kv_num_heads"]
    given = [
        *values(type_, packed=("batch", "length", packed_size)),
        *values(INT32, lengths=["batch"], max_length=[]),
        *values(TensorProto.INT64, token_ids=["batch", "length"]),
    ]
    weights = {**weights, **angles, "one": np.array(1, np.int32)}
    inner = values(type_, attended=rows)
    return make_graph(nodes, given, values(type_, y=rows), weights, inner)
