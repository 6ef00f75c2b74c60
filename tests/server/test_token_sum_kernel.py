"""The kernel that sums a text's token vectors."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import BoundGraph, KernelNodes
from server.runtime.kernels import pooling
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import kernel_nodes, rewrite
from server.runtime.ort.backend import OrtBackend

pytestmark = [
    pytest.mark.skipif(
        Kernels.TOKEN_SUM not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits"),
]


def graph(path: Path, axis: int = 1, keepdims: int = 0, type_: int = TensorProto.FLOAT) -> Path:
    """Makes ``y = sum of x over an axis``."""
    tokens = helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", "length"])
    x = helper.make_tensor_value_info("x", type_, ["batch", "length", "size"])
    y = helper.make_tensor_value_info("y", type_, None)
    axes = numpy_helper.from_array(np.array([axis]), "axes")
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=keepdims)
    model = helper.make_model(
        helper.make_graph([node], "g", [tokens, x], [y], [axes]),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def load_native(path: Path, keepdims: int = 0) -> BoundGraph:
    file = graph(path / "1" / "g.onnx", keepdims=keepdims)
    rewritten = rewrite(file, Kernels.TOKEN_SUM)
    assert rewritten is not None
    (node,) = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert node.op_type == pooling.OPERATOR
    return OrtBackend("cpu", 2).load(file, ()).bind({})


@pytest.mark.parametrize("keepdims", [0, 1])
def test_adds_tokens_in_order(tmp_path: Path, keepdims: int) -> None:
    bound, rng = load_native(tmp_path, keepdims), np.random.default_rng(0)
    for batch, length, size in ((1, 1, 1), (3, 5, 7), (2, 33, 64), (4, 100, 389), (0, 3, 8)):
        x = rng.normal(size=(batch, length, size)).astype(np.float32)
        y = bound.run({"token_ids": np.zeros((batch, length), np.int64), "x": x})["y"]
        expected = np.zeros((batch, size), np.float32)
        for token in range(length):
            expected += x[:, token]
        np.testing.assert_array_equal(y, expected[:, None] if keepdims else expected)


def test_keeps_nan_and_infinity_in_their_text(tmp_path: Path) -> None:
    x = np.ones((3, 2, 20), np.float32)
    x[0, 1, 3], x[1, 0, 19] = np.nan, np.inf
    y = load_native(tmp_path).run({"token_ids": np.zeros((3, 2), np.int64), "x": x})["y"]
    assert np.isnan(y[0, 3])
    assert np.isinf(y[1, 19])
    assert np.isfinite(y).sum() == y.size - 2
    np.testing.assert_array_equal(y[2], 2)


@pytest.mark.parametrize("other", [{"axis": 2}, {"type_": TensorProto.DOUBLE}])
def test_does_not_replace_other_sums(tmp_path: Path, other: dict[str, int]) -> None:
    file = graph(tmp_path / "g.onnx", **other)
    assert rewrite(file, Kernels.TOKEN_SUM) is None
    assert kernel_nodes(file, None) == KernelNodes(), "the kernel is for sums over tokens only"
