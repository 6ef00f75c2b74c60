"""int8 matmuls: accuracy, and independence of batch rows."""

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx_ir.tape import Tape

from export.apply_scheme import apply_scheme
from export.graphs import export_graphs
from export.precision_schemes import SCHEMES
from export.quantize import quantize_graph
from export.quantized_matmul import Int8Rows, Weight, row_int8
from export.smooth_quant import residual_smoothing_factors, smooth_activations
from model.bundle import Device, Precision
from model.config import ModelConfig
from model.kernels import Step
from model.transformer import from_weights
from tests.architectures import GPT, LLAMA, VASWANI, random_weights


def session_of(weight: Weight) -> ort.InferenceSession:
    x = ir.val("x", ir.DataType.FLOAT, ["batch", "length", weight.shape[0]])
    tape = Tape()
    y = row_int8(tape, x, "w", weight)
    y.name, y.dtype = "y", ir.DataType.FLOAT
    y.shape = ir.Shape(["batch", "length", weight.shape[1]])
    graph = ir.Graph(
        [x], [y], nodes=tape.nodes, initializers=tape.initializers, opset_imports={"": 23}
    )
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=10))
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def weight() -> Weight:
    return np.random.default_rng(0).normal(size=(96, 40)).astype(np.float32)


def test_int8_matmul_error_is_small(weight: Weight) -> None:
    x = np.random.default_rng(1).normal(size=(3, 5, 96)).astype(np.float32)
    (y,) = session_of(weight).run(None, {"x": x})
    expected = x @ weight
    assert np.linalg.norm(y - expected) < 0.015 * np.linalg.norm(expected)


def test_largest_values_do_not_saturate() -> None:
    """AVX2 adds two byte products in 16 bits: all weights must leave headroom."""
    rng = np.random.default_rng(2)
    weight = rng.choice(np.array([-3.0, -2.9, -0.5, 0.5, 2.9, 3.0], np.float32), (64, 16))
    weight[:, 0], weight[:, 1] = 3.0, -3.0
    x = rng.choice(np.array([-5.0, 5.0], np.float32), (1, 7, 64))
    x[:, 0] = 5.0
    (y,) = session_of(weight).run(None, {"x": x})
    outputs = Int8Rows.of("w", weight.T)
    expected = x @ (outputs.integers.T * outputs.scales)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)


@given(
    matrix=arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
def test_adjacent_weights_leave_headroom_and_round_to_half_a_step(matrix: Weight) -> None:
    rows = Int8Rows.of("w", matrix)
    back = rows.integers * rows.scales[:, None]
    assert (np.abs(back - matrix) <= rows.scales[:, None] * 0.5001).all()
    whole = rows.around_128.astype(np.int32) - 128
    np.testing.assert_array_equal(whole, rows.integers)
    pairs = whole[:, : matrix.shape[1] // 2 * 2]
    sums = np.abs(pairs[:, 0::2] + pairs[:, 1::2])
    assert sums.max(initial=0) * 255 <= np.iinfo(np.int16).max


def test_row_does_not_depend_on_its_batch(weight: Weight) -> None:
    session = session_of(weight)
    x = np.random.default_rng(1).normal(size=(4, 3, 96)).astype(np.float32)
    x[2] *= 1e4
    x[3] = 0
    (batched,) = session.run(None, {"x": x})
    for row in range(4):
        (alone,) = session.run(None, {"x": x[row : row + 1]})
        np.testing.assert_array_equal(batched[row], alone[0])
    np.testing.assert_array_equal(batched[3], 0)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_chained_matmuls_are_quantized(weight: Weight, precision: Precision) -> None:
    """Like a projection before a decoder's head: the second takes the first's quantized output."""
    x = ir.val("x", ir.DataType.FLOAT, ["batch", 96])
    second = weight.T.copy()
    tape = Tape()
    matrices = [
        tape.initializer(ir.tensor(array, name=name))
        for name, array in (("first", weight), ("second", second))
    ]
    for matrix in matrices:
        matrix.dtype = ir.DataType.FLOAT
    y = tape.op("MatMul", [tape.op("MatMul", [x, matrices[0]]), matrices[1]])
    y.name, y.dtype, y.shape = "y", ir.DataType.FLOAT, ir.Shape(["batch", 96])
    graph = ir.Graph(
        [x], [y], nodes=tape.nodes, initializers=tape.initializers, opset_imports={"": 23}
    )
    model = ir.Model(graph, ir_version=10)
    quantize_graph(model, SCHEMES[precision, Device.CPU])
    assert not {"MatMul"} & {node.op_type for node in model.graph}
    proto = ir.serde.serialize_model(model).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    (actual,) = session.run(None, {"x": rows})
    expected = rows @ weight @ second
    assert np.linalg.norm(actual - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize("config", [LLAMA, GPT])
def test_smoothed_weights_keep_the_outputs(config: ModelConfig) -> None:
    weights = random_weights(config)
    # An outlier channel in front of each kind of matrix.
    norm = "decoder.layers.0.mixer_norm.weight"
    weights[norm] = weights[norm].clone()
    weights[norm][7] *= 50
    rows = [[3, 1, 4, 1, 5, 9], [2, 6, 5]]
    smoothed = smooth_activations(config, weights, rows)
    assert not torch.equal(smoothed[norm], weights[norm])
    assert (smoothed[norm].abs().max() / smoothed[norm].abs().mean()) < 0.5 * (
        weights[norm].abs().max() / weights[norm].abs().mean()
    )
    ids, step = torch.tensor([[8, 9, 7, 9, 3]]), Step.whole(torch.tensor([5]))
    before, after = (
        model.logits(model.decode(ids, step).hidden)
        for model in (from_weights(config, weights), from_weights(config, smoothed))
    )
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_residual_inputs_are_smoothed_in_the_graph(tmp_path: Path) -> None:
    """Smoothing factors reduce the int8 error of an outlier channel after a post-norm layer."""
    weights = random_weights(VASWANI)
    for norm in ("mixer_norm", "feed_forward_norm"):
        for index in range(len(VASWANI.encoder.layers if VASWANI.encoder else ())):
            name = f"encoder.layers.{index}.{norm}.weight"
            weights[name] = weights[name].clone()
            weights[name][5] *= 40
    factors = residual_smoothing_factors(VASWANI, weights, [[3, 1, 4, 1, 5, 9], [2, 6, 5]])
    readers = (
        "mixer.qkv",
        "cross_attention.query",
        "cross_attention.key_value",
        "feed_forward.input",
    )
    assert {name.split(".", 3)[3].removesuffix(".weight") for name in factors} == set(readers)
    outlier = factors["encoder.layers.1.mixer.qkv.weight"]
    assert outlier.argmax() == 5
    scheme = SCHEMES[Precision.INT8, Device.CPU]
    feeds = {
        "token_ids": np.array([[8, 9, 7, 9, 3]]),
        "lengths": np.array([5], np.int32),
    }
    (tmp_path / "plain").mkdir()
    graphs = export_graphs(VASWANI, weights, tmp_path / "plain")
    numpy_factors = {name: values.numpy() for name, values in factors.items()}
    vectors = []
    for label, smoothing in (("plain", None), ("int8", {}), ("divided", numpy_factors)):
        folder = tmp_path / label
        if smoothing is not None:
            shutil.copytree(tmp_path / "plain", folder)
            apply_scheme(VASWANI, scheme, graphs, folder, smoothing)
        file = folder / graphs["encode"].file
        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        vectors.append(np.concatenate([x.ravel() for x in session.run(None, feeds)]))
    errors = [np.linalg.norm(quantized - vectors[0]) for quantized in vectors[1:]]
    assert errors[1] < 0.7 * errors[0]


def test_post_norm_weights_are_unchanged() -> None:
    weights = random_weights(VASWANI)
    smoothed = smooth_activations(VASWANI, weights, [[1, 2, 3]])
    assert all(smoothed[name] is weights[name] for name in weights)
