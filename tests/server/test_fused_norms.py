"""Products that normalize what they quantize or compute give the bits of a norm of its own."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import CANDIDATES
from server.runtime.kernels import fused_norms, norms
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server import matmul_graphs

KERNELS = Kernels.INT8_MATMUL | Kernels.BLOCK_MATMUL | Kernels.MATMUL | Kernels.NORM
pytestmark = [
    pytest.mark.skipif(KERNELS not in supported_kernels(), reason="this CPU cannot run them"),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]
EPSILON = 1e-3


def product(path: Path, weight: Array, bits: int | None) -> Path:
    """Saves ``y = x @ weight``: with ``bits``, in blocks or, if 32, in fp32; else in int8."""
    if bits is None:
        return matmul_graphs.product(path, weight)
    if bits == 32:
        return matmul_graphs.fp32_product(path, weight)
    return matmul_graphs.block_product(path, weight, bits)


def insert_norm(
    file: Path, operator: str, num_inputs: int, *, has_bias: bool = False, has_factors: bool = False
) -> Path:
    """Saves a copy of a product's graph with a norm of ``x`` before it, then perhaps factors."""
    rng = np.random.default_rng(1)
    model = onnx.load(file)
    graph = model.graph
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == "x":
                node.input[index] = "scaled" if has_factors else "normal"
    weights = ["scale", "bias"] if has_bias else ["scale"]
    for name in [*weights, "factors"] if has_factors else weights:
        values = rng.normal(size=num_inputs).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, name))
    if has_factors:
        graph.node.insert(0, helper.make_node("Mul", ["normal", "factors"], ["scaled"]))
    graph.node.insert(0, helper.make_node(operator, ["x", *weights], ["normal"], epsilon=EPSILON))
    to = file.with_name("normalized.onnx")
    onnx.save(model, to)
    return to


def give_normal(file: Path, *shape: str | int) -> Path:
    """Saves a copy that also gives ``normal``, so that the norm has another reader."""
    model = onnx.load(file)
    model.graph.output.append(helper.make_tensor_value_info("normal", TensorProto.FLOAT, shape))
    to = file.with_name("given.onnx")
    onnx.save(model, to)
    return to


def operators(file: Path) -> Counter[str]:
    rewritten = rewrite(file, KERNELS)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    return Counter(node.op_type for node in nodes)


@pytest.mark.parametrize(
    ("operator", "has_bias"),
    [("RMSNormalization", False), ("LayerNormalization", False), ("LayerNormalization", True)],
)
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_fused_norm_changes_no_bit(
    tmp_path: Path, operator: str, has_bias: bool, bits: int | None
) -> None:
    num_inputs, num_outputs = 96, 40
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    file = product(tmp_path / "a" / "1", weight, bits)
    file = insert_norm(file, operator, num_inputs, has_bias=has_bias)
    separate = give_normal(file, "rows", num_inputs)
    assert operators(file)[norms.OPERATOR] == 0
    assert operators(separate)[norms.OPERATOR] == 1
    backend = OrtBackend("cpu", 2)
    fused, apart = (backend.load(f, ()).bind({}, ("y",)) for f in (file, separate))
    for num_rows in (1, 5, 16, 70):
        x = 3 * rng.normal(size=(num_rows, num_inputs)).astype(np.float32) + 1
        np.testing.assert_array_equal(fused.run({"x": x})["y"], apart.run({"x": x})["y"])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_with_factors_a_residual_and_padding(tmp_path: Path, num_threads: int) -> None:
    """Rows past their length in ``[batch, length, size]`` become 0, even where x is NaN."""
    size, width, of_tokens = 96, 44, ["batch", "length"]
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(size, width)).astype(np.float32)
    file = product(tmp_path / "a" / "1", weight, None)
    file = insert_norm(file, "LayerNormalization", size, has_bias=True, has_factors=True)
    model = onnx.load(file)
    graph = model.graph
    table = rng.normal(size=(50, size)).astype(np.float32)
    table[7] = np.nan
    graph.initializer.append(numpy_helper.from_array(table, "table"))
    graph.node.insert(0, helper.make_node("Gather", ["table", "token_ids"], ["x"]))
    graph.node.extend(
        [
            helper.make_node("Neg", ["rest"], ["kept"]),
            helper.make_node("Add", ["y", "kept"], ["sum"]),
            helper.make_node("Neg", ["sum"], ["z"]),
        ]
    )
    for values in (graph.input, graph.output, graph.value_info):
        del values[:]
    graph.input.extend(
        [
            helper.make_tensor_value_info("token_ids", TensorProto.INT64, of_tokens),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["texts"]),
            helper.make_tensor_value_info("rest", TensorProto.FLOAT, [*of_tokens, width]),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [*of_tokens, width]))
    onnx.save(onnx.shape_inference.infer_shapes(model), file)
    separate = give_normal(file, *of_tokens, size)
    assert operators(file) == Counter(Gather=1, Neg=2, DynamicInt8MatMul=1)
    assert operators(separate)[norms.OPERATOR] == 1
    lengths = np.array([5, 0, 130, 1], np.int32)
    token_ids = rng.integers(8, 50, (4, 130))
    is_padding = np.arange(130) >= lengths[:, None]
    token_ids[is_padding] = 7
    inputs: dict[str, Array] = {
        "token_ids": token_ids,
        "lengths": lengths,
        "rest": rng.normal(size=(4, 130, width)).astype(np.float32),
    }
    backend = OrtBackend("cpu", num_threads)
    fused, apart = (backend.load(f, ()).bind({}, ("z",)).run(inputs)["z"] for f in (file, separate))
    np.testing.assert_array_equal(fused, apart)
    assert (fused[is_padding] == 0).all()
    assert np.abs(fused[~is_padding]).min(1).all()


def normalize_output(file: Path, operator: str, width: int) -> Path:
    """Saves a copy of a product's graph that gives ``z``, the norm of ``y``."""
    rng = np.random.default_rng(1)
    model = onnx.load(file)
    graph = model.graph
    weights = ["scale", "bias"] if operator == "LayerNormalization" else ["scale"]
    for name in weights:
        values = rng.normal(size=width).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, name))
    graph.node.append(helper.make_node(operator, ["y", *weights], ["normal"], epsilon=EPSILON))
    graph.node.append(helper.make_node("Neg", ["normal"], ["z"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", width]))
    to = file.with_name("normalized.onnx")
    onnx.save(model, to)
    return to


@pytest.mark.parametrize("operator", norms.STANDARD_OPERATORS)
@pytest.mark.parametrize("bits", [None, 4, 32])
def test_a_fused_norm_of_the_output_changes_no_bit(
    tmp_path: Path, operator: str, bits: int | None
) -> None:
    num_inputs, width = 96, 44
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(num_inputs, width)).astype(np.float32)
    file = normalize_output(product(tmp_path / "a" / "1", weight, bits), operator, width)
    model = onnx.load(file)
    model.graph.output.append(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])
    )
    separate = file.with_name("given.onnx")
    onnx.save(model, separate)
    assert sorted(operators(file).values()) == [1, 1]
    assert operators(separate)[norms.OPERATOR] == 1
    backend = OrtBackend("cpu", 2)
    fused, apart = (backend.load(f, ()).bind({}, ("z",)) for f in (file, separate))
    for num_rows in (1, 5, 16, 70):
        x = rng.normal(size=(num_rows, num_inputs)).astype(np.float32)
        np.testing.assert_array_equal(fused.run({"x": x})["z"], apart.run({"x": x})["z"])


def test_a_norm_that_a_branch_reads_stays_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = product(tmp_path / "a" / "1", rng.normal(size=(32, 16)).astype(np.float32), 8)
    file = insert_norm(file, "RMSNormalization", 32)
    model = onnx.load(file)
    branches = {}
    for operator in ("Neg", "Abs"):
        value = helper.make_tensor_value_info(operator, TensorProto.FLOAT, None)
        node = helper.make_node(operator, ["normal"], [operator])
        branches[operator] = helper.make_graph([node], operator, [], [value])
    model.graph.node.append(
        helper.make_node(
            "If", ["is_then"], ["z"], then_branch=branches["Neg"], else_branch=branches["Abs"]
        )
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "is_then"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", 32]))
    onnx.save(model, file)
    assert operators(file)[norms.OPERATOR] == 1
    x = rng.normal(size=(3, 32)).astype(np.float32)
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}, ("z",)).run({"x": x})["z"]
    (expected,) = matmul_graphs.standard_session(file).run(["z"], {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_a_norm_of_long_rows_stays_apart(tmp_path: Path) -> None:
    num_inputs = 8224
    weight = np.full((num_inputs, 1), 0.5, np.float32)
    file = insert_norm(product(tmp_path / "a" / "1", weight, 8), "RMSNormalization", num_inputs)
    assert operators(file)[norms.OPERATOR] == 1
    x = np.random.default_rng(0).normal(size=(2, num_inputs)).astype(np.float32)
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": x})["y"]
    assert np.isfinite(actual).all()


def test_the_product_with_candidates_takes_normal_rows(tmp_path: Path) -> None:
    file = insert_norm(
        product(tmp_path / "a" / "1", np.ones((32, 16), np.float32), None), "RMSNormalization", 32
    )
    model = onnx.load(file)
    model.graph.output[0].name = "logits"
    for node in model.graph.node:
        node.output[:] = ["logits" if name == "y" else name for name in node.output]
    onnx.save(model, file)
    rewritten = rewrite(file, KERNELS, takes_candidates=True)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert [node.op_type for node in nodes] == ["Norm", "DynamicInt8MatMul"]
    assert CANDIDATES in nodes[1].input


def test_fused_norms_count_as_norms(tmp_path: Path) -> None:
    weight = np.ones((32, 16), np.float32)
    file = insert_norm(product(tmp_path / "a" / "1", weight, 8), "RMSNormalization", 32)
    rewritten = rewrite(file, KERNELS)
    assert rewritten is not None
    assert rewritten.kernel_nodes.num_native == {"block_matmul": 1, "norm": 1}
    (node,) = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert fused_norms.count_norms(node) == 1
