"""Weights read from ONNX graphs match what ONNX Runtime computes with them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from tokenizers import Tokenizer

from export.errors import SourceError, UnsupportedError
from export.readers.onnx_weights import OnnxWeights
from export.sources import DEFAULT_SOURCES, load_checkpoint
from tests.export.importers.support import pooled

INPUTS, OUTPUTS = 80, 24


def graph(path: Path, *, bits: int, symmetric: bool) -> Path:
    """Writes the graph of a linear layer ``encoder.layer.0.dense`` with quantized weights."""
    weight = np.random.default_rng(0).normal(size=(INPUTS, OUTPUTS)).astype(np.float32)
    name, bias = "/encoder/layer.0/dense", "encoder.layer.0.dense.bias"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name=f"{name}/MatMul"),
        helper.make_node("Add", ["xw", bias], ["y"], name=f"{name}/Add"),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUTPUTS])],
            [
                numpy_helper.from_array(weight, "w"),
                numpy_helper.from_array(weight[0], bias),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    quantizer = MatMulNBitsQuantizer(model, bits=bits, block_size=32, is_symmetric=symmetric)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))
    return path


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_block_quantized_matrices_match_onnxruntime(
    tmp_path: Path, bits: int, symmetric: bool
) -> None:
    path = graph(tmp_path / "model.onnx", bits=bits, symmetric=symmetric)
    weights = OnnxWeights(path)
    assert set(weights) == {"encoder.layer.0.dense.weight", "encoder.layer.0.dense.bias"}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.eye(INPUTS, dtype=np.float32)})
    weight, bias = (weights[f"encoder.layer.0.dense.{name}"] for name in ("weight", "bias"))
    np.testing.assert_allclose(weight.T + bias, expected, rtol=0, atol=1e-6)


def test_default_tagger_matches_its_original_graph() -> None:
    checkpoint = load_checkpoint("pii")
    folder = DEFAULT_SOURCES["pii"].locate()
    session = onnxruntime.InferenceSession(
        str(folder / "onnx" / "model_q4.onnx"), providers=["CPUExecutionProvider"]
    )
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    for text in ("My name is Ángela Müller, call +44 20 7946 0958.", *checkpoint.sample_inputs):
        ids = np.array([tokenizer.encode(text).ids])
        (expected,) = session.run(
            None,
            {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            },
        )
        ours = pooled(checkpoint, torch.from_numpy(ids), torch.tensor([ids.shape[1]]))
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)


def test_default_corrector_matches_its_original_graph(tmp_path: Path) -> None:
    """Without the graph's quantized activations, which no bundle has."""
    checkpoint = load_checkpoint("grammar")
    model = onnx.load(str(DEFAULT_SOURCES["grammar"].locate() / "tagger.onnx"))
    quantized = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }
    activations = {
        node.output[0]: quantized[node.input[0]]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in quantized
    }
    assert len(activations) >= 90
    for node in model.graph.node:
        node.input[:] = [activations.get(name, name) for name in node.input]
    onnx.save(model, str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    for text in ("She have went to there house", *checkpoint.sample_inputs):
        ids = np.array([tokenizer.encode(text).ids])
        (expected,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        ours = pooled(checkpoint, torch.from_numpy(ids), torch.tensor([ids.shape[1]]))
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-4)
        assert expected.shape[-1] == len(checkpoint.labels) == 213


@pytest.mark.parametrize("per_output", [True, False])
def test_matrices_behind_dequantize_linear_match_onnxruntime(
    tmp_path: Path, per_output: bool
) -> None:
    random = np.random.default_rng(0)
    values = random.integers(-128, 128, (INPUTS, OUTPUTS)).astype(np.int8)
    size = (OUTPUTS,) if per_output else ()
    scale = random.uniform(0.01, 0.1, size).astype(np.float32)
    zeros = random.integers(-5, 6, size).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["y"], name="/encoder/layer.0/dense/MatMul"),
    ]
    initializers: dict[str, Any] = {"w": values, "s": np.asarray(scale), "z": np.asarray(zeros)}
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("x", INPUTS), ("y", OUTPUTS))
    }
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [tensors["x"]],
            [tensors["y"]],
            [numpy_helper.from_array(array, name) for name, array in initializers.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": np.eye(INPUTS, dtype=np.float32)})
    weights = OnnxWeights(path)
    assert set(weights) == {"encoder.layer.0.dense.weight"}
    weight = weights["encoder.layer.0.dense.weight"]
    np.testing.assert_allclose(weight.T, expected, rtol=1e-6, atol=1e-5)
    for tensor in model.graph.initializer:
        if tensor.name == "s":
            tensor.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "s"))
    onnx.save(model, str(path))
    with pytest.raises(UnsupportedError, match="scales and zero points"):
        OnnxWeights(path)["encoder.layer.0.dense.weight"]


def test_damaged_graphs_are_rejected(tmp_path: Path) -> None:
    path = graph(tmp_path / "model.onnx", bits=4, symmetric=True)
    model = onnx.load(str(path))
    (tensor,) = (x for x in model.graph.initializer if list(x.dims) == [OUTPUTS, 3, 16])
    tensor.dims[0] = OUTPUTS // 2
    tensor.raw_data = tensor.raw_data[: OUTPUTS // 2 * 48]
    onnx.save(model, str(path))
    with pytest.raises(SourceError, match=r"is \(12, 3, 16\), not \(24, 3, 16\)"):
        OnnxWeights(path)["encoder.layer.0.dense.weight"]
    tensor.data_location = TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match="is in another file"):
        OnnxWeights(path)
    path.write_bytes(b"\xff\xff nothing")
    with pytest.raises(SourceError, match=r"model\.onnx"):
        OnnxWeights(path)
