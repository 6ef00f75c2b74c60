"""Operators whose output takes the memory of an input, and inputs that something reads later."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.ort.backend import OrtBackend
from tests.server import matmul_graphs

KERNELS = Kernels.INT8_MATMUL | Kernels.BLOCK_MATMUL | Kernels.MATMUL | Kernels.NORM
pytestmark = [
    pytest.mark.skipif(KERNELS not in supported_kernels(), reason="this CPU cannot run them"),
    pytest.mark.usefixtures("all_kernels"),
]
SIZE, WIDTH = 96, 44  # the last panel is not full
WEIGHT = np.random.default_rng(0).normal(size=(SIZE, WIDTH)).astype(np.float32)


def add_residual(model: onnx.ModelProto) -> None:
    """Adds ``sum = y + kept``, whose residual is computed, so that ``sum`` may take its memory."""
    model.graph.node.append(helper.make_node("Add", ["y", "kept"], ["sum"]))
    model.graph.value_info.append(model.graph.output[0])  # ONNX infers no shape of MatMulNBits


def norm(path: Path) -> onnx.ModelProto:
    """``sum`` is the normalization of ``kept``."""
    del path
    scale = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32)
    nodes = [helper.make_node("LayerNormalization", ["kept", "scale"], ["sum"])]
    graph = helper.make_graph(nodes, "g", [], [], [numpy_helper.from_array(scale, "scale")])
    opset = helper.make_opsetid("", 23)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


CASES: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "DynamicInt8MatMul": lambda path: onnx.load(matmul_graphs.product(path, WEIGHT)),
    "DynamicBlockMatMul": lambda path: onnx.load(matmul_graphs.block_product(path, WEIGHT, 4)),
    "PackedMatMul": lambda path: onnx.load(matmul_graphs.fp32_product(path, WEIGHT)),
    "Norm": norm,
}


@pytest.mark.parametrize("is_read_later", [False, True])
@pytest.mark.parametrize("operator", CASES)
def test_only_what_nothing_reads_later_is_overwritten(
    tmp_path: Path, register_bits: int, operator: str, is_read_later: bool
) -> None:
    model = CASES[operator](tmp_path / "a" / "1")
    graph = model.graph
    if operator != "Norm":
        add_residual(model)
    last = ("Sub", ["sum", "kept"]) if is_read_later else ("Neg", ["sum"])
    graph.node.insert(0, helper.make_node("Neg", ["rest"], ["kept"]))
    graph.node.append(helper.make_node(*last, ["z"]))
    rest, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH])
        for name in ("rest", "z")
    )
    graph.input.append(rest)
    del graph.output[:]
    graph.output.append(z)
    file = tmp_path / "in_place.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), file)
    rewritten = rewrite(file, KERNELS)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert [node.op_type for node in nodes] == ["Neg", operator, last[0]]
    rng = np.random.default_rng(1)
    inputs = {
        "x": rng.normal(size=(70, SIZE)).astype(np.float32),
        "rest": rng.normal(size=(70, WIDTH)).astype(np.float32),
    }
    if operator == "Norm":
        del inputs["x"]
    (expected,) = matmul_graphs.standard_session(file).run(None, inputs)
    actual = OrtBackend("cpu", 2).load(file, ()).bind({}).run(inputs)["z"]
    is_coarser = operator == "DynamicBlockMatMul" and register_bits > 256  # other steps of x
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.25 if is_coarser else 0.05)
