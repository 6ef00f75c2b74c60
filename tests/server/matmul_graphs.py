"""Graphs of one matmul, in the forms that the export writes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.tape import Tape

from export.block_matmul import block_matmul
from export.quantized_matmul import Int8Rows, constant, gather_rows, row_int8, tied_int8
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import RewrittenGraph
from server.runtime.memory import Array

NEEDS_KERNEL = pytest.mark.skipif(
    Kernels.INT8_MATMUL not in supported_kernels(), reason="this CPU cannot run the kernel"
)


def product(path: Path, weight: Array, *, is_tied: bool = False) -> Path:
    """Saves an int8 graph ``y = x @ weight``. ``is_tied``: it also gathers rows of the weight."""
    x = ir.val("x", ir.DataType.FLOAT, ["rows", weight.shape[0]])
    ids = ir.val("token_ids", ir.DataType.INT64, ["tokens"])
    inputs, tape = [x], Tape()
    if is_tied:
        rows = Int8Rows.of("w", np.ascontiguousarray(weight.T))
        stored = constant(tape, "w.int8", rows.around_128)
        y = tied_int8(tape, x, rows, stored)
        looked_up = gather_rows(tape, ids, rows, stored)
        looked_up.name, looked_up.dtype = "looked_up", ir.DataType.FLOAT
        looked_up.shape = ir.Shape(["tokens", weight.shape[0]])
        inputs.append(ids)
        outputs = [y, looked_up]
    else:
        y = row_int8(tape, x, "w", weight)
        outputs = [y]
    y.name, y.dtype, y.shape = "y", ir.DataType.FLOAT, ir.Shape(["rows", weight.shape[1]])
    return save(path, inputs, outputs, tape)


def block_product(path: Path, weight: Array, bits: int) -> Path:
    """Saves a graph ``y = x @ weight`` with ``weight [inputs, outputs]`` in blocks."""
    tape = Tape()
    return _save_product(path, weight, tape, lambda x: block_matmul(tape, x, "w", weight, bits))


def fp32_product(path: Path, weight: Array) -> Path:
    """Saves a graph ``y = x @ weight`` with ``weight [inputs, outputs]`` in fp32."""
    tape = Tape()
    return _save_product(
        path, weight, tape, lambda x: tape.op("MatMul", [x, constant(tape, "w", weight)])
    )


def _save_product(
    path: Path, weight: Array, tape: Tape, multiply: Callable[[ir.Value], ir.Value]
) -> Path:
    x = ir.val("x", ir.DataType.FLOAT, ["rows", weight.shape[0]])
    y = multiply(x)
    y.name, y.dtype, y.shape = "y", ir.DataType.FLOAT, ir.Shape(["rows", weight.shape[1]])
    return save(path, [x], [y], tape)


def save(path: Path, inputs: list[ir.Value], outputs: list[ir.Value], tape: Tape) -> Path:
    """Saves a graph of the nodes of ``tape``, with its weights in another file."""
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=tape.nodes,
        initializers=tape.initializers,
        opset_imports={"": 23, "com.microsoft": 1},
    )
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=10))
    path.mkdir(parents=True, exist_ok=True)
    file = path / "graph.onnx"
    onnx.save(
        proto, file, save_as_external_data=True, location="graph.onnx.data", size_threshold=1024
    )
    return file


def append_epilogue(file: Path, activation: str, bias: Array) -> Path:
    """Appends the epilogue ``activation(y + bias) + rest`` to ``file``."""
    model = onnx.load(file)
    graph, size = model.graph, len(bias)
    nodes = [onnx.helper.make_node("Add", ["y", "bias"], ["biased"])]
    if activation == "SiluGate":
        size //= 2
        nodes += [
            onnx.helper.make_node("Split", ["biased"], ["gate", "value"], axis=-1, num_outputs=2),
            onnx.helper.make_node("Sigmoid", ["gate"], ["sigmoid"]),
            onnx.helper.make_node("Mul", ["gate", "sigmoid"], ["silu"]),
            onnx.helper.make_node("Mul", ["silu", "value"], ["active"]),
        ]
    else:
        nodes.append(onnx.helper.make_node(activation, ["biased"], ["active"]))
    nodes.append(onnx.helper.make_node("Identity", ["rest"], ["kept"]))
    nodes.append(onnx.helper.make_node("Add", ["kept", "active"], ["sum"]))
    nodes.append(onnx.helper.make_node("Identity", ["sum"], ["z"]))
    graph.node.extend(nodes)
    graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    rest, z = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", size])
        for name in ("rest", "z")
    )
    graph.input.append(rest)
    graph.value_info.append(graph.output[0])  # ONNX infers no shape of MatMulNBits
    del graph.output[:]
    graph.output.append(z)
    onnx.save(onnx.shape_inference.infer_shapes(model), file)
    return file


def weight_formats(rewritten: RewrittenGraph | None) -> list[int]:
    """The ``weight_format`` of each native node that has one, in the order of the nodes."""
    assert rewritten is not None
    return [
        attribute.i
        for node in onnx.ModelProto.FromString(rewritten.model).graph.node
        for attribute in node.attribute
        if attribute.name == "weight_format"
    ]


def standard_session(file: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
