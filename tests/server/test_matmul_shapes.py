"""Products reject inputs whose shapes do not fit, as standard operators do, and read no more."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import CANDIDATES
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server import matmul_graphs

KERNELS = Kernels.INT8_MATMUL | Kernels.BLOCK_MATMUL | Kernels.MATMUL
pytestmark = [
    pytest.mark.skipif(KERNELS not in supported_kernels(), reason="this CPU cannot run them"),
    pytest.mark.usefixtures("all_kernels"),
]
NUM_INPUTS, NUM_OUTPUTS = 64, 20
WEIGHT = np.random.default_rng(0).normal(size=(NUM_INPUTS, NUM_OUTPUTS)).astype(np.float32)


def with_any_width(file: Path, output: str = "y") -> Path:
    """Declares rows of any width, so that ONNX Runtime does not check it; renames the output."""
    model = onnx.load(file)
    model.graph.input[0].type.tensor_type.shape.dim[1].CopyFrom(
        onnx.TensorShapeProto.Dimension(dim_param="width")
    )
    model.graph.output[0].name = output
    for node in model.graph.node:
        node.output[:] = [output if name == "y" else name for name in node.output]
    onnx.save(model, file)
    return file


@pytest.mark.parametrize("width", [NUM_INPUTS // 2, NUM_INPUTS - 1, 2 * NUM_INPUTS])
@pytest.mark.parametrize(
    "save",
    [
        matmul_graphs.fp32_product,
        matmul_graphs.product,
        lambda path, weight: matmul_graphs.block_product(path, weight, 8),
        lambda path, weight: matmul_graphs.block_product(path, weight, 4),
    ],
    ids=["fp32", "int8", "blocks of 8 bits", "blocks of 4 bits"],
)
def test_rows_of_another_width_are_rejected(
    tmp_path: Path, save: Callable[[Path, Array], Path], width: int
) -> None:
    bound = OrtBackend("cpu", 1).load(with_any_width(save(tmp_path / "1", WEIGHT)), ()).bind({})
    assert bound.run({"x": np.ones((3, NUM_INPUTS), np.float32)})["y"].shape == (3, NUM_OUTPUTS)
    with pytest.raises(Exception, match="must have num_inputs elements"):
        bound.run({"x": np.ones((3, width), np.float32)})


def test_rows_of_another_width_are_rejected_with_candidates(tmp_path: Path) -> None:
    file = with_any_width(matmul_graphs.product(tmp_path / "1", WEIGHT), "logits")
    bound = OrtBackend("cpu", 1).load(file, (), takes_candidates=True).bind({})
    inputs = {"x": np.ones((1, 2 * NUM_INPUTS), np.float32), CANDIDATES: np.zeros((1, 1), np.int32)}
    with pytest.raises(Exception, match="must have num_inputs elements"):
        bound.run(inputs)


def product_of_tokens(path: Path) -> Path:
    """Saves ``y = table[token_ids] @ WEIGHT + rest``, whose rows have ``lengths``."""
    rows = ["batch", "length"]
    nodes = [
        helper.make_node("Gather", ["table", "token_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "rest"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("token_ids", TensorProto.INT64, rows),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, ["texts"]),
        helper.make_tensor_value_info("rest", TensorProto.FLOAT, [*rows, NUM_OUTPUTS]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, NUM_OUTPUTS])
    table = np.ones((5, NUM_INPUTS), np.float32)
    initializers = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph(nodes, "g", inputs, [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


@pytest.mark.parametrize(
    ("rest_rows", "lengths", "message"),
    [
        (1, [3, 2], "residual must be shaped as y"),
        (2, [3], "lengths must be"),
        (2, [3, -1], "lengths must be"),
    ],
)
def test_residuals_and_lengths_that_do_not_fit_are_rejected(
    tmp_path: Path, rest_rows: int, lengths: list[int], message: str
) -> None:
    bound = OrtBackend("cpu", 1).load(product_of_tokens(tmp_path / "g.onnx"), ()).bind({})
    inputs: dict[str, Array] = {
        "token_ids": np.zeros((2, 3), np.int64),
        "lengths": np.array([3, 2], np.int32),
        "rest": np.ones((2, 3, NUM_OUTPUTS), np.float32),
    }
    y = bound.run(inputs)["y"]
    assert (y != 0).any(-1).tolist() == [[True] * 3, [True, True, False]]
    inputs["rest"] = np.ones((rest_rows, 3, NUM_OUTPUTS), np.float32)
    inputs["lengths"] = np.array(lengths, np.int32)
    with pytest.raises(Exception, match=message):
        bound.run(inputs)
