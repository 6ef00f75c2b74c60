"""The fp32 matmul kernel with its epilogue, against the standard operators."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import BoundGraph
from server.runtime.kernels import matmul
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend

pytestmark = [
    pytest.mark.skipif(
        Kernels.MATMUL not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]


def graph(
    path: Path,
    weight: Array,
    bias: Array | None,
    activation: str = "",
    *,
    has_residual: bool = False,
) -> Path:
    """Saves ``y = activation(x @ weight + bias) + rest`` as standard operators."""
    rows, (num_inputs, num_outputs) = ["batch", "length"], weight.shape
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, num_inputs])]
    nodes, last = [helper.make_node("MatMul", ["x", "w"], ["product"])], "product"
    initializers = [numpy_helper.from_array(weight, "w")]
    if bias is not None:
        initializers.append(numpy_helper.from_array(bias, "b"))
        nodes.append(helper.make_node("Add", ["b", last], ["biased"]))
        last = "biased"
    if activation == "SiluGate":
        nodes += [
            helper.make_node("Split", [last], ["gate", "value"], axis=-1, num_outputs=2),
            helper.make_node("Sigmoid", ["gate"], ["sigmoid"]),
            helper.make_node("Mul", ["gate", "sigmoid"], ["silu"]),
            helper.make_node("Mul", ["silu", "value"], ["active"]),
        ]
        num_outputs //= 2
        last = "active"
    elif activation:
        nodes.append(helper.make_node(activation, [last], ["active"]))
        last = "active"
    if has_residual:
        inputs.append(
            helper.make_tensor_value_info("rest", TensorProto.FLOAT, [*rows, num_outputs])
        )
        nodes.append(helper.make_node("Identity", ["rest"], ["kept"]))
        nodes.append(helper.make_node("Add", [last, "kept"], ["whole"]))
        last = "whole"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, num_outputs])
    onnx_graph = helper.make_graph(nodes, "g", inputs, [y], initializers)
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def load_native(file: Path, num_threads: int = 1) -> BoundGraph:
    rewritten = rewrite(file, Kernels.MATMUL)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert [node.op_type for node in nodes if node.op_type != "Identity"] == [matmul.OPERATOR]
    return OrtBackend("cpu", num_threads).load(file, ()).bind({})


def reference(
    x: Array, weight: Array, bias: Array | None, activation: str, residual: Array | None
) -> Array:
    """Reference: the product in float64, the activation by ONNX Runtime."""
    y = x.astype(np.float64) @ weight.astype(np.float64)
    y = y if bias is None else y + bias
    if activation == "SiluGate":
        gate, value = np.split(y, 2, axis=-1)
        y = gate / (1 + np.exp(-gate)) * value
    elif activation:
        node = helper.make_node(activation, ["x"], ["y"])
        one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
        onnx_graph = helper.make_graph([node], "g", one[:1], one[1:])
        model = helper.make_model(
            onnx_graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9
        )
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        y = session.run(None, {"x": y.astype(np.float32)})[0]
    return y if residual is None else y + residual


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("activation", ["", "Relu", "Gelu", "SiluGate"])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(1, 2), (7, 6), (384, 16), (385, 40), (800, 522)]
)
def test_matches_the_standard_operators(
    tmp_path: Path, num_inputs: int, num_outputs: int, activation: str, num_threads: int
) -> None:
    rng = np.random.default_rng(num_inputs)
    weight = rng.normal(size=(num_inputs, num_outputs), scale=num_inputs**-0.5).astype(np.float32)
    for bias in (None, rng.normal(size=num_outputs).astype(np.float32)):
        for has_residual in (False, True):
            name = f"{bias is None}-{has_residual}"
            file = graph(
                tmp_path / name / "1" / "g.onnx",
                weight,
                bias,
                activation,
                has_residual=has_residual,
            )
            bound = load_native(file, num_threads)
            for num_rows in (1, 2, 3, 7, 8, 97, 200):
                x = rng.normal(size=(1, num_rows, num_inputs)).astype(np.float32)
                width = num_outputs // 2 if activation == "SiluGate" else num_outputs
                residual = rng.normal(size=(1, num_rows, width)).astype(np.float32)
                inputs = {"x": x, "rest": residual} if has_residual else {"x": x}
                actual = bound.run(inputs)["y"]
                expected = reference(
                    x, weight, bias, activation, residual if has_residual else None
                )
                np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-5)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=6),
)
def test_rows_are_independent(
    tmp_path_factory: pytest.TempPathFactory, seed: int, counts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(401, 37)).astype(np.float32)
    folder = tmp_path_factory.mktemp("rows") / "1"
    bound = load_native(graph(folder / "g.onnx", weight, None, "Gelu"))
    x = rng.normal(size=(1, sum(counts), 401)).astype(np.float32)
    together = bound.run({"x": x})["y"].copy()
    start = 0
    for count in counts:
        part = bound.run({"x": np.ascontiguousarray(x[:, start : start + count])})["y"]
        np.testing.assert_array_equal(part, together[:, start : start + count])
        start += count


@pytest.mark.parametrize("activation", ["Relu", "Gelu", "SiluGate"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_row_does_not_affect_other_rows(
    tmp_path: Path, bad: float, activation: str
) -> None:
    rng = np.random.default_rng(0)
    weight = np.abs(rng.normal(size=(40, 32))).astype(np.float32)
    bound = load_native(graph(tmp_path / "a" / "1" / "g.onnx", weight, None, activation))
    x = rng.normal(size=(1, 6, 40)).astype(np.float32)
    expected = bound.run({"x": x})["y"].copy()
    x[0, 2, 3] = bad
    actual = bound.run({"x": x})["y"]
    assert not np.isfinite(actual[0, 2]).any()
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(actual[0, others], expected[0, others])


def test_gelu_is_accurate_over_its_range(tmp_path: Path) -> None:
    """Multiplies by the identity. Includes the tails, where GELU is 0 or its input."""
    bound = load_native(
        graph(tmp_path / "a" / "1" / "g.onnx", np.eye(16, dtype=np.float32), None, "Gelu")
    )
    x = np.linspace(-12, 12, 16 * 4096, dtype=np.float32).reshape(1, -1, 16)
    expected = reference(x, np.eye(16, dtype=np.float32), None, "Gelu", None)
    np.testing.assert_allclose(bound.run({"x": x})["y"], expected, rtol=5e-7, atol=3e-6)


def test_silu_is_accurate_over_its_range(tmp_path: Path) -> None:
    """Sets the value half of the gate to 1."""
    weight, bias = np.eye(8, 16, dtype=np.float32), np.repeat([0, 1], 8).astype(np.float32)
    bound = load_native(graph(tmp_path / "a" / "1" / "g.onnx", weight, bias, "SiluGate"))
    x = np.linspace(-100, 100, 8 * 4096, dtype=np.float32).reshape(1, -1, 8)
    expected = reference(x, weight, bias, "SiluGate", None)
    np.testing.assert_allclose(bound.run({"x": x})["y"], expected, rtol=1e-6, atol=1e-35)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_replaces_gemm(tmp_path: Path, is_transposed: bool) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(33, 70)).astype(np.float32)
    stored = np.ascontiguousarray(weight.T) if is_transposed else weight
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=int(is_transposed))]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", 33), ("y", 70))
    )
    onnx_graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(stored, "w")])
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    file = tmp_path / "a" / "1" / "g.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(model, file)
    rows = rng.normal(size=(5, 33)).astype(np.float32)
    np.testing.assert_allclose(
        load_native(file).run({"x": rows})["y"], rows @ weight, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("lengths", [[5, 0, 130, 1], [130, 130, 130, 130], [0, 0, 0, 0], [7] * 4])
def test_skips_padding_rows(tmp_path: Path, lengths: list[int], num_threads: int) -> None:
    """Rows past their length in ``[batch, length, size]`` become 0, even where x is NaN."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 33)).astype(np.float32)
    table[7] = np.nan
    weight = rng.normal(size=(33, 21)).astype(np.float32)
    of_tokens = ["batch", "length"]
    nodes = [
        helper.make_node("Gather", ["table", "token_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Identity", ["product"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("token_ids", TensorProto.INT64, of_tokens),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, ["texts"]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*of_tokens, 21])
    initializers = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "w")]
    onnx_graph = helper.make_graph(nodes, "g", inputs, [y], initializers)
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    file = tmp_path / "a" / "1" / "g.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(onnx.shape_inference.infer_shapes(model), file)
    token_ids = rng.integers(8, 50, (4, 130))
    for row, length in enumerate(lengths):
        token_ids[row, length:] = 7
    bound = OrtBackend("cpu", num_threads).load(file, ()).bind({})
    actual = bound.run({"token_ids": token_ids, "lengths": np.array(lengths, np.int32)})["y"]
    expected = np.nan_to_num(table[token_ids] @ weight)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_does_not_fuse_values_with_other_consumers(tmp_path: Path) -> None:
    """Cases: a product that is also an output; a residual of unknown shape."""
    file = graph(tmp_path / "1" / "g.onnx", np.ones((4, 8), np.float32), np.ones(8, np.float32))
    model = onnx.load(file)
    model.graph.output.append(
        helper.make_tensor_value_info("product", TensorProto.FLOAT, ["batch", "length", 8])
    )
    onnx.save(model, file)
    rewritten = rewrite(file, Kernels.MATMUL)
    assert rewritten is not None
    operators = [n.op_type for n in onnx.ModelProto.FromString(rewritten.model).graph.node]
    assert operators == [matmul.OPERATOR, "Add", "Identity"]
    file = graph(tmp_path / "1" / "h.onnx", np.ones((4, 8), np.float32), None, has_residual=True)
    model = onnx.load(file)
    del model.graph.value_info[:]
    onnx.save(model, file)
    rewritten = rewrite(file, Kernels.MATMUL)
    assert rewritten is not None
    operators = [n.op_type for n in onnx.ModelProto.FromString(rewritten.model).graph.node]
    assert "Add" in operators
