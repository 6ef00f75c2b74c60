"""Exported graphs, rewritten for CUDA, compute what they did: steps of decoders, and an encoder."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder
from loadtest.gpu.model_sizes import SIZES
from server.runtime.contract import (
    BEST_TOKENS,
    FEW_ROWS,
    IS_LIVE,
    NEXT_NUM_CACHED_TOKENS,
    NEXT_TOKEN_IDS,
)
from server.runtime.cuda.shared_weights import Weight, share_weights
from server.runtime.cuda.steps import rewrite_steps
from server.runtime.memory import Array
from server.runtime.rewriting.nodes import MICROSOFT
from tests.server import cuda_operators
from tests.server.cuda_graphs import load, rewrite
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.in_place import run_in_place

pytestmark = [NEEDS_LIBRARY, pytest.mark.slow]
MODELS, ENCODER = ("llama-check", "bart-check"), "bert-check"
CAPACITY, SOURCE = 24, 6
CACHED = [0, 7, 20]
SUPPRESSED = (0, 1, 2)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Decode graphs, and that of the encoder, by model."""
    builder = ModelBuilder(tmp_path_factory.mktemp("models"), "cuda", Deadline(600))
    try:
        folders = {
            name: builder.bundle(SIZES[name], "fp16", "float") for name in (*MODELS, ENCODER)
        }
    finally:
        builder.close()
    files = {name: "encode.onnx" if name == ENCODER else "decode.onnx" for name in folders}
    return {name: folder / files[name] for name, folder in folders.items()}


def transposed(weight: Weight) -> Array:
    words = np.dtype(np.uint16 if weight.item_bytes == 2 else np.float32)
    shape = (weight.rows, weight.columns)
    stored = np.memmap(weight.file, words, "r", weight.offset, shape)
    return np.ascontiguousarray(stored.T)


def supply(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Puts shared weights into a model."""
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            dims, name, type_ = list(tensor.dims), tensor.name, tensor.data_type
            array = transposed(weights[name])
            assert list(array.shape) == dims
            tensor.Clear()
            tensor.CopyFrom(numpy_helper.from_array(array, name))
            tensor.data_type = type_


def rewritten(path: Path, max_rows: int = FEW_ROWS) -> onnx.ModelProto:
    model = onnx.load(str(path), load_external_data=False)
    weights = share_weights(model, path.parent)
    assert rewrite_steps(model, path.parent, SUPPRESSED, max_rows=max_rows)
    supply(model, weights)
    return model


def inputs_of(model: onnx.ModelProto) -> dict[str, Array]:
    """Makes the inputs of a step of three rows, the last of which is padding."""
    random = np.random.default_rng(1)
    rows = len(CACHED)
    given: dict[str, Array] = {
        "token_ids": random.integers(5, 512, (rows, 1)),
        "logit_positions": np.arange(rows, dtype=np.int32),
        "num_cached_tokens": np.array(CACHED, np.int32),
        "num_new_tokens": np.ones(rows, np.int32),
        "max_total_length": np.array(CAPACITY, np.int32),
        "source_lengths": np.array([SOURCE, 1, 4], np.int32),
        "max_source_length": np.array(SOURCE, np.int32),
        IS_LIVE: np.array([1, 1, 0], np.int32),
    }
    for value in model.graph.input:
        if value.name.startswith("past."):
            _, heads, _, size = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
            length = SOURCE if "cross" in value.name else CAPACITY
            cache = random.normal(size=(rows, heads, length, size))
            given[value.name] = cache.astype(np.float16)
    names = {value.name for value in model.graph.input}
    return {name: array for name, array in given.items() if name in names}


@pytest.mark.parametrize("name", MODELS)
def test_few_rows(name: str, graphs: Mapping[str, Path], emulated: Path) -> None:
    path = graphs[name]
    exported, model = onnx.load(str(path), load_external_data=False), rewritten(path)
    inputs = inputs_of(model)
    actual = run_in_place(model, inputs, emulated, path.parent)
    given = {key: array for key, array in inputs.items() if key != IS_LIVE}
    expected = run_in_place(exported, given, None, path.parent)
    for key, array in expected.items():
        tolerance = 2e-3 * np.abs(array).max()
        np.testing.assert_allclose(actual[key], array, rtol=0, atol=tolerance, err_msg=key)
    logits = expected["logits"].copy()
    logits[:, list(SUPPRESSED)] = -np.inf
    best = logits.argmax(-1)
    np.testing.assert_array_equal(actual[BEST_TOKENS], best)
    np.testing.assert_array_equal(actual[NEXT_TOKEN_IDS], [[best[0]], [best[1]], [0]])
    np.testing.assert_array_equal(actual[NEXT_NUM_CACHED_TOKENS], [1, 8, 20])


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_operators_of_llama(graphs: Mapping[str, Path]) -> None:
    layer = [
        *("LinearFp16", "DecodeAttentionFp16", "LinearFp16"),  # the first has the norm
        *("LinearFp16", "LinearFp16"),  # the first has the norm and the gated activation
    ]
    found = operators(rewritten(graphs["llama-check"]))
    assert [name for name in found if name not in ("Add", "Sub", "Cast")] == [
        *("Gather", *layer, *layer, "NormFp16", "Squeeze", "LinearFp16", "BestToken", "Advance")
    ]


@pytest.mark.parametrize("name", MODELS)
def test_many_rows_multiply_by_transposed_weights(name: str, graphs: Mapping[str, Path]) -> None:
    model = rewritten(graphs[name], max_rows=FEW_ROWS + 1)
    found = operators(model)
    assert "LinearFp16" not in found
    assert found.count("DecodeAttentionFp16") == (2 if name == "llama-check" else 4)
    products = [node for node in model.graph.node if node.op_type == "FusedMatMul"]
    assert len(products) > 8
    assert all(node.domain == MICROSOFT for node in products)
    assert all(helper.get_node_attr_value(node, "transB") == 1 for node in products)


def test_inputs_that_something_else_reads_are_not_overwritten(graphs: Mapping[str, Path]) -> None:
    path = graphs["llama-check"]
    model = onnx.load(str(path), load_external_data=False)
    share_weights(model, path.parent)
    model.graph.node.append(helper.make_node("Identity", ["num_cached_tokens"], ["copy"]))
    model.graph.output.append(helper.make_tensor_value_info("copy", TensorProto.INT32, ["s18"]))
    assert rewrite_steps(model, path.parent, max_rows=1)
    assert "Advance" not in operators(model)
    assert IS_LIVE not in {value.name for value in model.graph.input}


def test_a_model_that_gets_no_weights_fails(graphs: Mapping[str, Path], emulated: Path) -> None:
    path = graphs["llama-check"]
    model = onnx.load(str(path), load_external_data=False)
    assert share_weights(model, path.parent)
    with pytest.raises(Exception, match="out of bounds"):
        run_in_place(model, inputs_of(model), emulated, path.parent)


def test_selections_that_are_not_of_logits_stay() -> None:
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["token_ids", "num_cached_tokens"], ["y"])],
        "g",
        [
            make("token_ids", TensorProto.INT64, ["rows", "length"]),
            make("logit_positions", TensorProto.INT32, ["chosen"]),
            make("num_cached_tokens", TensorProto.INT32, ["rows"]),
        ],
        [make("y", TensorProto.INT64, None)],
    )
    model = helper.make_model(graph)
    assert not rewrite_steps(model, Path(), max_rows=1)
    assert operators(model) == ["Gather"]


def test_vectors_of_an_encoder(graphs: Mapping[str, Path]) -> None:
    graph = graphs[ENCODER]
    data = rewrite(graph)
    assert data is not None
    model, exported = load(data, graph.parent), onnx.load(str(graph))
    lengths = np.array([9, 1, 5], np.int32)
    ids = np.random.default_rng(0).integers(5, SIZES[ENCODER].config["vocab_size"], (3, 9))
    inputs: dict[str, Array] = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "lengths": lengths,
    }
    expected, found = cuda_operators.run(exported, inputs), cuda_operators.run(model, inputs)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=0.01, err_msg=name)


def test_operators_of_an_encoder(graphs: Mapping[str, Path]) -> None:
    graph = graphs[ENCODER]
    data = rewrite(graph)
    assert data is not None
    found = [node.op_type for node in load(data, graph.parent).graph.node]
    layers = SIZES[ENCODER].config["num_hidden_layers"]
    for operator, count in {
        "EncoderAttentionFp16": layers,
        "SplitFp16": 0,
        "ActivationFp16": layers,
        "NormFp16": 2 * layers + 1,
        "KeyRangesFp16": 0,
        "PoolFp16": 1,
        "GroupQueryAttention": 0,
        "Gelu": 0,
        "ReduceSum": 0,
    }.items():
        assert found.count(operator) == count, operator
