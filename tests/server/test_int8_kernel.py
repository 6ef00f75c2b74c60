"""The fused int8 operator equals nine standard operators, bit for bit."""

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import graphs_in_use, kernel_nodes, load_rewritten, rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import NEEDS_KERNEL, append_epilogue, product, standard_session

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits", "all_kernels")]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(1, 1), (7, 5), (8, 16), (33, 40), (130, 523), (576, 1024)]
)
def test_matches_the_standard_operators(
    tmp_path: Path, num_inputs: int, num_outputs: int, num_threads: int
) -> None:
    rng = np.random.default_rng(num_inputs)
    weight = rng.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    weight[:, -1] = 0
    file = product(tmp_path / "a" / "1", weight)
    native = OrtBackend("cpu", num_threads).load(file, ()).bind({})
    standard = standard_session(file)
    for num_rows in (1, 2, 3, 4, 5, 63, 64, 65, 130):
        x = rng.normal(size=(num_rows, num_inputs)).astype(np.float32) * 10
        x[::3] *= 1e-20
        x[1::5] = 0
        (expected,) = standard.run(None, {"x": x})
        np.testing.assert_array_equal(native.run({"x": x})["y"], expected)


@settings(max_examples=60)
@given(
    x=st.lists(
        st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=9, max_size=9), min_size=1
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_the_standard_operators_for_any_rows(
    tmp_path_factory: pytest.TempPathFactory, x: list[list[float]], seed: int
) -> None:
    weight = np.random.default_rng(seed).standard_cauchy((9, 19)).astype(np.float32)
    file = product(tmp_path_factory.mktemp("any") / "1", weight)
    rows = np.array(x, np.float32)
    (expected,) = standard_session(file).run(None, {"x": rows})
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": rows})["y"]
    np.testing.assert_array_equal(actual, expected)


def test_fuses_input_factors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = product(tmp_path / "a" / "1", rng.normal(size=(37, 20)).astype(np.float32))
    model = onnx.load(file)
    for node in model.graph.node:
        node.input[:] = ["scaled" if name == "x" else name for name in node.input]
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["x", "factors"], ["scaled"]))
    factors = rng.uniform(0.1, 9, 37).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(factors, "factors"))
    onnx.save(model, file)
    rewritten = rewrite(file, Kernels.INT8_MATMUL)
    assert rewritten is not None
    (node,) = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert node.input[0] == "x"
    x = rng.normal(size=(9, 37)).astype(np.float32)
    (expected,) = standard_session(file).run(None, {"x": x})
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": x})["y"]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("num_inputs", [70, 128])
@pytest.mark.parametrize("activation", ["Relu", "Gelu", "SiluGate"])
def test_fuses_the_epilogue(tmp_path: Path, activation: str, num_inputs: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(num_inputs, 44)).astype(np.float32) * 0.5
    bias = rng.normal(size=44).astype(np.float32)
    file = append_epilogue(product(tmp_path / "a" / "1", weight), activation, bias)
    rewritten = rewrite(file, Kernels.INT8_MATMUL)
    assert rewritten is not None
    nodes = onnx.ModelProto.FromString(rewritten.model).graph.node
    assert sorted(node.op_type for node in nodes) == ["DynamicInt8MatMul", "Identity", "Identity"]
    for num_rows in (1, 6, 70):
        inputs = {
            "x": rng.normal(size=(num_rows, num_inputs)).astype(np.float32),
            "rest": rng.normal(size=(num_rows, 22 if activation == "SiluGate" else 44)).astype(
                np.float32
            ),
        }
        (expected,) = standard_session(file).run(None, inputs)
        actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run(inputs)["z"]
        if activation == "Relu":
            np.testing.assert_array_equal(actual, expected)
        # gelu_coarse and silu_coarse in activations.h.
        tolerances = {"Gelu": (2e-6, 2.2e-4), "SiluGate": (1.5e-4, 1e-3)}
        rtol, atol = tolerances.get(activation, (2e-6, 2e-5))
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def test_tied_matrix_still_supports_lookup(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(48, 100)).astype(np.float32)
    file = product(tmp_path / "a" / "1", weight, is_tied=True)
    inputs = {
        "x": np.random.default_rng(1).normal(size=(5, 48)).astype(np.float32),
        "token_ids": np.array([0, 99, 7]),
    }
    expected = standard_session(file).run(["y", "looked_up"], inputs)
    actual = OrtBackend("cpu", 1).load(file, ()).session.run(["y", "looked_up"], inputs)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [3, 39])
def test_non_finite_row_does_not_affect_other_rows(tmp_path: Path, bad: float, column: int) -> None:
    rng = np.random.default_rng(0)
    file = product(tmp_path / "a" / "1", rng.normal(size=(40, 32)).astype(np.float32))
    native = OrtBackend("cpu", 1).load(file, ()).bind({})
    x = rng.normal(size=(6, 40)).astype(np.float32)
    expected = native.run({"x": x})["y"].copy()
    x[2, column] = bad
    actual = native.run({"x": x})["y"]
    assert not np.isfinite(actual[2]).any()
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(actual[others], expected[others])


def test_sessions_share_packed_weights_and_free_them(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    file = product(tmp_path / "a" / "1", weight)
    graphs = [OrtBackend("cpu", n).load(file, ()) for n in (1, 2)]
    assert load_rewritten(file) is load_rewritten(file)
    assert file in {key[0] for key in graphs_in_use}
    del graphs
    gc.collect()
    assert file not in {key[0] for key in graphs_in_use}


def test_does_not_replace_similar_graphs(tmp_path: Path) -> None:
    """Cases: another zero point; a second consumer of an intermediate value."""
    weight = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    file = product(tmp_path / "a" / "1", weight)
    for change in ("zero", "reader"):
        model = onnx.load(file)
        if change == "zero":
            (zero,) = [t for t in model.graph.initializer if t.name == "w.zero"]
            zero.CopyFrom(onnx.numpy_helper.from_array(np.array(127, np.uint8), "w.zero"))
        else:
            (cast,) = [node for node in model.graph.node if node.op_type == "Cast"]
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(
                    cast.output[0], onnx.TensorProto.FLOAT, ["rows", 32]
                )
            )
        other = tmp_path / f"{change}.onnx"
        onnx.save(model, other)
        assert rewrite(other, Kernels.INT8_MATMUL) is None
        assert kernel_nodes(other, None).num_standard == {"int8_matmul": 1}


@pytest.mark.parametrize(
    "constants",
    [
        {"step": np.array(1 / 63, np.float32)},
        {"floor": np.array(1, np.float32)},
        {"axis": np.array([0, 1], np.int64)},
        {"scales": np.array(0.01, np.float32)},
        {"matrix_zero": np.zeros(32, np.int8)},
        {"int8": np.full((40, 32), 128, np.uint8), "matrix_zero": np.array(0, np.uint8)},
        {"int8": np.full((40, 32), 255, np.uint8), "matrix_zero": np.array(10, np.uint8)},
    ],
    ids=",".join,
)
def test_products_with_other_constants_stay(tmp_path: Path, constants: dict[str, Array]) -> None:
    """Cases: other steps, a larger floor, more axes, one scale, zero points, wide weights."""
    rng = np.random.default_rng(0)
    file = product(tmp_path / "a" / "1", rng.normal(size=(40, 32)).astype(np.float32))
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        if (value := constants.get(tensor.name.removeprefix("w."))) is not None:
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    onnx.save(model, file)
    assert rewrite(file, Kernels.INT8_MATMUL) is None
    x = rng.normal(size=(5, 40)).astype(np.float32)
    (expected,) = standard_session(file).run(None, {"x": x})
    actual = OrtBackend("cpu", 1).load(file, ()).bind({}).run({"x": x})["y"]
    np.testing.assert_array_equal(actual, expected)
