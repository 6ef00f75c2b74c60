"""The kernel of the simpler simple recurrent unit equals the operators that it replaces."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Tensor
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import standard_session

pytestmark = [
    pytest.mark.skipif(
        Kernels.SSRU not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]
SIZE = 44  # not a multiple of any register


def graph(path: Path, length: int | str = 1, axis: int = 1, one: float = 1) -> Path:
    """Saves one step as the export writes it, unless ``axis`` or ``one`` differ from it."""
    nodes = [
        helper.make_node("Neg", ["kept"], ["residual"]),
        helper.make_node("Sigmoid", ["forget"], ["f"]),
        helper.make_node("Sub", ["one", "f"], ["rest"]),
        helper.make_node("Mul", ["rest", "x"], ["weighted"]),
        helper.make_node("Gather", ["f", "first"], ["f_of_token"], axis=axis),
        helper.make_node("Mul", ["f_of_token", "past"], ["kept_state"]),
        helper.make_node("Gather", ["weighted", "first"], ["new"], axis=1),
        helper.make_node("Add", ["kept_state", "new"], ["present"]),
        helper.make_node("Unsqueeze", ["present", "axes"], ["state"]),
        helper.make_node("Relu", ["state"], ["positive"]),
        helper.make_node("Add", ["residual", "positive"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    of_tokens = ["rows", length, SIZE]
    inputs = [
        helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["rows", length]),
        *(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, of_tokens)
            for name in ("forget", "x", "kept")
        ),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, ["rows", SIZE]),
    ]
    outputs = [
        helper.make_tensor_value_info("z", TensorProto.FLOAT, of_tokens),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, ["rows", SIZE]),
    ]
    initializers = [
        numpy_helper.from_array(np.array(one, np.float32), "one"),
        numpy_helper.from_array(np.array(0), "first"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    made = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    file = path / "a" / "1" / "g.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(onnx.shape_inference.infer_shapes(model), file)
    return file


@pytest.mark.parametrize("num_rows", [1, 3, 1000])
def test_matches_the_standard_operators(tmp_path: Path, num_rows: int) -> None:
    file = graph(tmp_path)
    rewritten = rewrite(file, Kernels.SSRU)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert [node.op_type for node in nodes] == ["Neg", "Ssru", "Neg"]
    assert rewritten.kernel_nodes.num_native == {"ssru": 1}
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.normal(size=(num_rows, 1, SIZE)).astype(np.float32)
        for name in ("forget", "x", "kept")
    }
    inputs["forget"] *= 50
    inputs["past"] = rng.normal(size=(num_rows, SIZE)).astype(np.float32)
    inputs["token_ids"] = np.zeros((num_rows, 1), np.int64)
    names = ["z", "present"]
    expected = standard_session(file).run(names, inputs)
    state = inputs.pop("past").copy()
    bound = OrtBackend("cpu", 2).load(file, ()).bind({("past", "present"): Tensor.of(state)})
    actual = bound.run(inputs)
    for values, right in zip((actual["z"], state), expected, strict=True):
        np.testing.assert_allclose(values, right, rtol=0, atol=2e-6)


@pytest.mark.parametrize("changes", [{"length": "length"}, {"axis": 0}, {"one": 2}])
def test_leaves_other_steps_to_the_standard_operators(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert rewrite(graph(tmp_path, **changes), Kernels.SSRU) is None
