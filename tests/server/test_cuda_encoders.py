"""An exported encoder, rewritten for CUDA, computes the same vectors."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder
from loadtest.gpu.model_sizes import SIZES
from server.runtime.contract import Array
from server.runtime.cuda.rewrite import rewrite
from tests.server.cuda_graphs import load
from tests.server.cuda_operators import NEEDS_LIBRARY, run

pytestmark = NEEDS_LIBRARY
SIZE = SIZES["bert-check"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = ModelBuilder(tmp_path_factory.mktemp("models"), "cuda", Deadline(600))
    try:
        return builder.bundle(SIZE, "fp16", "float") / "encode.onnx"
    finally:
        builder.close()


def test_vectors(graph: Path) -> None:
    data = rewrite(graph)
    assert data is not None
    model, exported = load(data, graph.parent), onnx.load(str(graph))
    lengths = np.array([9, 1, 5], np.int32)
    ids = np.random.default_rng(0).integers(5, SIZE.config["vocab_size"], (3, 9))
    inputs: dict[str, Array] = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "lengths": lengths,
    }
    expected, found = run(exported, inputs), run(model, inputs)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=0.01, err_msg=name)


def test_operators(graph: Path) -> None:
    data = rewrite(graph)
    assert data is not None
    found = [node.op_type for node in load(data, graph.parent).graph.node]
    layers = SIZE.config["num_hidden_layers"]
    for operator, count in {
        "SplitFp16": layers,
        "MultiHeadAttention": layers,
        "ActivationFp16": layers,
        "NormFp16": 2 * layers + 1,
        "KeyRangesFp16": 1,
        "PoolFp16": 1,
        "GroupQueryAttention": 0,
        "Gelu": 0,
        "ReduceSum": 0,
    }.items():
        assert found.count(operator) == count, operator
