"""The normalization kernel against the definitions of the standard operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import BoundGraph
from server.runtime.kernels import norms
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend

pytestmark = [
    pytest.mark.skipif(
        Kernels.NORM not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits"),
]

EPSILON = 1e-3


def graph(
    path: Path,
    operator: str,
    scale: Array,
    bias: Array | None,
    *,
    is_scale_given: bool = True,
    **attributes: Any,
) -> Path:
    """Makes ``y = operator(x) + 0``."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "n", len(scale)])]
    initializers = []
    if is_scale_given:
        initializers.append(numpy_helper.from_array(scale, "scale"))
    else:
        inputs.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [len(scale)]))
    node_inputs = ["x", "scale"]
    if bias is not None:
        initializers.append(numpy_helper.from_array(bias, "bias"))
        node_inputs.append("bias")
    nodes = [
        helper.make_node(operator, node_inputs, ["normal"], epsilon=EPSILON, **attributes),
        helper.make_node("Identity", ["normal"], ["y"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "n", len(scale)])
    onnx_graph = helper.make_graph(nodes, "g", inputs, [y], initializers)
    model = helper.make_model(
        onnx_graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def load_native(file: Path, num_threads: int = 1) -> BoundGraph:
    rewritten = rewrite(file, Kernels.NORM)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert [node.op_type for node in nodes] == [norms.OPERATOR, "Identity"]
    return OrtBackend("cpu", num_threads).load(file, ()).bind({})


def reference(x: Array, scale: Array, bias: Array | None, *, is_centered: bool) -> Array:
    """Reference from the operators' documentation, in float64."""
    x = x.astype(np.float64)
    if is_centered:
        x = x - x.mean(-1, keepdims=True)
    normal: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * scale
    return normal if bias is None else normal + bias


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", [1, 7, 8, 16, 72, 384, 577])
@pytest.mark.parametrize(
    ("operator", "has_bias"),
    [("LayerNormalization", True), ("LayerNormalization", False), ("RMSNormalization", False)],
)
def test_matches_the_operator_definition(
    tmp_path: Path, operator: str, has_bias: bool, size: int, num_threads: int
) -> None:
    rng = np.random.default_rng(size)
    scale, bias = rng.normal(size=(2, size)).astype(np.float32)
    given_bias = bias if has_bias else None
    bound = load_native(graph(tmp_path / "1" / "g.onnx", operator, scale, given_bias), num_threads)
    for num_rows in (1, 3, 200):
        x = rng.normal(2.0, 3.0, size=(1, num_rows, size)).astype(np.float32)
        expected = reference(x, scale, given_bias, is_centered=operator == "LayerNormalization")
        np.testing.assert_allclose(bound.run({"x": x})["y"], expected, rtol=2e-5, atol=2e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 400), size=st.integers(1, 200))
def test_rows_are_independent(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_rows: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    scale, bias = rng.normal(size=(2, size)).astype(np.float32)
    folder = tmp_path_factory.mktemp("rows") / "1"
    bound = load_native(graph(folder / "g.onnx", "LayerNormalization", scale, bias), num_threads=2)
    x = rng.normal(size=(1, num_rows, size)).astype(np.float32)
    together = bound.run({"x": x})["y"][0]
    for row in {0, num_rows // 2, num_rows - 1}:
        alone = bound.run({"x": x[:, row : row + 1]})["y"][0, 0]
        np.testing.assert_array_equal(alone, together[row])


def test_accepts_zero_rows(tmp_path: Path) -> None:
    bound = load_native(
        graph(tmp_path / "1" / "g.onnx", "RMSNormalization", np.ones(8, np.float32), None)
    )
    assert bound.run({"x": np.zeros((0, 3, 8), np.float32)})["y"].shape == (0, 3, 8)


@pytest.mark.parametrize("values", [[np.nan, 1.0], [np.inf, 1.0]])
def test_nan_or_infinity_makes_the_row_nan(tmp_path: Path, values: list[float]) -> None:
    scale = np.ones(20, np.float32)
    bound = load_native(graph(tmp_path / "1" / "g.onnx", "LayerNormalization", scale, None))
    x = np.ones((1, 2, 20), np.float32)
    x[0, 0, :2] = values
    y = bound.run({"x": x})["y"][0]
    assert np.isnan(y[0]).all()
    np.testing.assert_array_equal(y[1], 0)


@pytest.mark.parametrize(
    "other",
    [{"axis": 1}, {"stash_type": 10}, {"is_scale_given": False}],
    ids=["another axis", "another precision", "a scale that changes"],
)
def test_does_not_replace_unsupported_norms(tmp_path: Path, other: dict[str, Any]) -> None:
    file = graph(tmp_path / "g.onnx", "LayerNormalization", np.ones(8, np.float32), None, **other)
    assert rewrite(file, Kernels.NORM) is None


@pytest.mark.parametrize(("scale_size", "bias_size"), [(8, 1), (1, 8), (1, 1)])
def test_does_not_replace_norms_that_broadcast(
    tmp_path: Path, scale_size: int, bias_size: int
) -> None:
    rng = np.random.default_rng(0)
    scale, bias = rng.normal(size=(2, 8)).astype(np.float32)
    file = graph(tmp_path / "g.onnx", "LayerNormalization", scale, bias)
    model = onnx.load(file)
    scale, bias = scale[:scale_size], bias[:bias_size]
    for tensor, value in zip(model.graph.initializer, (scale, bias), strict=True):
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    onnx.save(model, file)
    assert rewrite(file, Kernels.NORM) is None
    x = rng.normal(size=(1, 3, 8)).astype(np.float32)
    y = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": x})["y"]
    expected = reference(x, scale, bias, is_centered=True)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)
